// A real OpenID Connect provider on the loopback address: `node provider.mjs CONSOLE`. CONSOLE is the address under
// which browsers reach the console. Prints the issuer once it answers. Whoever types a name is that person; the name's
// parts after a plus are their groups: `ann+responders`.
import { createServer } from "node:http";
import { generateKeyPairSync, randomBytes } from "node:crypto";
import { Provider } from "oidc-provider";

const home = process.argv[2];
const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const server = createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const claimsOf = (id) => {
  const [name, ...groups] = id.split("+");
  return {
    sub: id,
    name: `${name} of the tests`,
    preferred_username: name,
    email: `${name}@example.org`,
    email_verified: !name.startsWith("unverified"),
    groups,
  };
};

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "hindcast",
      client_secret: "a-secret-of-the-tests",
      redirect_uris: [`${home}/login/callback`],
      post_logout_redirect_uris: [`${home}/enter`],
    },
    {
      client_id: "hindcast-public",
      token_endpoint_auth_method: "none",
      redirect_uris: [`${home}/login/callback`],
    },
  ],
  claims: { openid: ["sub"], profile: ["name", "preferred_username", "groups"], email: ["email", "email_verified"] },
  cookies: { keys: [randomBytes(32).toString("hex")] },
  jwks: { keys: [{ ...privateKey.export({ format: "jwk" }), use: "sig", alg: "RS256", kid: "tests" }] },
  pkce: { required: () => true },
  features: {
    devInteractions: { enabled: false },
    rpInitiatedLogout: {
      logoutSource(ctx, form) {
        const button = '<button form="op.logoutForm" type="submit" name="logout" value="yes">Log out of the provider</button>';
        ctx.body = page("Log out", `${form}${button}`);
      },
    },
  },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  findAccount: (ctx, id) => ({ accountId: id, claims: () => claimsOf(id) }),
  // The tests are about who somebody is, not about what they consent to.
  async loadExistingGrant(ctx) {
    const grant = new provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
    grant.addOIDCScope("openid profile email");
    await grant.save();
    return grant;
  },
});

const page = (title, body) =>
  `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>${title}</title></head><body>${body}</body></html>`;

provider.use(async (ctx, next) => {
  if (!ctx.path.startsWith("/interaction/")) return next();
  await provider.interactionDetails(ctx.req, ctx.res);
  if (ctx.method === "GET") {
    const form = '<form method="post"><label>Name <input name="login"></label><button>Sign in</button></form>';
    ctx.body = page("Sign in", form);
    return;
  }
  const chunks = [];
  for await (const chunk of ctx.req) chunks.push(chunk);
  const login = new URLSearchParams(Buffer.concat(chunks).toString()).get("login");
  const result = login === "nobody" ? { error: "access_denied", error_description: "refused" } : { login: { accountId: login } };
  await provider.interactionFinished(ctx.req, ctx.res, result);
});

server.on("request", provider.callback());
console.log(issuer);
// Ends with whoever started it.
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
