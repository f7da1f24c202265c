// What the pages gain with JavaScript: copying, local times, keys, dropping files. Everything works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  root.dataset.js = "";
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];

  function say(text) {
    const toast = $("#toast");
    toast.textContent = text;
    clearTimeout(say.timer);
    say.timer = setTimeout(() => { toast.textContent = ""; }, 2500);
  }

  // ---- copying ----
  async function copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      say(`Copied ${what}`);
    } catch {
      // Without a secure context there is no clipboard; a selected field lets the person do it.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      say(document.execCommand("copy") ? `Copied ${what}` : "The browser refuses to copy; the text is selected");
      field.remove();
    }
  }

  // ---- times: UTC stays in the text, local and relative go into the title ----
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  function ago(moment) {
    const seconds = (moment - Date.now()) / 1000;
    for (const [unit, length] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
      if (Math.abs(seconds) >= length) return relative.format(Math.round(seconds / length), unit);
    }
    return relative.format(Math.round(seconds), "second");
  }
  function localTime(element) {
    const moment = new Date(element.dateTime);
    if (!Number.isNaN(moment.getTime())) element.title = `${moment.toLocaleString()} local time, ${ago(moment)}`;
  }
  document.addEventListener("pointerover", (event) => {
    const time = event.target.closest?.("time");
    if (time) localTime(time);
  });
  document.addEventListener("focusin", (event) => $$("time", event.target).forEach(localTime));

  setInterval(() => {
    for (const element of $$("[data-elapsed-since]")) {
      const seconds = Math.max(0, Math.floor((Date.now() - Number(element.dataset.elapsedSince)) / 1000));
      element.textContent = seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
    }
  }, 1000);

  // ---- theme: a cookie, because the server then draws the right one at once and no web storage is used ----
  function switchTheme() {
    const order = ["", "dark", "light"];
    const next = order[(order.indexOf(root.dataset.theme ?? "") + 1) % order.length];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    document.cookie = `hindcast_theme=${next}; path=/; samesite=lax; max-age=${next ? 31536000 : 0}`;
    say(`Theme: ${next || "as the system has it"}`);
  }

  // ---- the timeline ----
  const stops = () => $$("#timeline tbody.stop");
  const current = () => $("#timeline tbody.current");
  function select(stop, scroll = true) {
    if (!stop) return;
    current()?.classList.remove("current");
    stop.classList.add("current");
    $("a", stop)?.focus({ preventScroll: true });
    if (scroll) stop.scrollIntoView({ block: "nearest" });
    if (stop.dataset.ordinal) history.replaceState(history.state, "", `#e${stop.dataset.ordinal}`);
  }
  function step(direction, among) {
    const all = stops();
    const wanted = all.filter(among);
    const at = all.indexOf(current());
    const next = direction > 0
      ? wanted.find((stop) => all.indexOf(stop) > at)
      : wanted.findLast((stop) => all.indexOf(stop) < at);
    if (next) select(next);
    return Boolean(next);
  }
  function difference(direction) {
    if (step(direction, (stop) => stop.classList.contains("differs"))) return;
    const around = $("#timeline [data-base]")?.dataset;
    const address = direction > 0 ? around?.nextDifference : around?.previousDifference;
    if (address) location.assign(address);
    else say(direction > 0 ? "No later difference" : "No earlier difference");
  }
  async function open(link) {
    const stop = link.closest("tbody");
    const opened = $(".opened", stop);
    if (opened) {
      opened.remove();
      link.textContent = "open";
      return;
    }
    const row = document.createElement("tr");
    row.className = "sub opened";
    const cell = document.createElement("td");
    cell.colSpan = 4;
    row.append(cell);
    stop.append(row);
    link.textContent = "close";
    await htmx.ajax("GET", link.href, { target: cell, select: "#opened", swap: "innerHTML" });
  }
  function openCurrent() {
    const link = current() && $("a.open, a.unfold", current());
    if (link) link.click();
  }
  function arrive() {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.matches("tbody.stop")) select(target, false);
  }

  const keys = {
    j: () => step(1, () => true),
    k: () => step(-1, () => true),
    n: () => difference(1),
    p: () => difference(-1),
    g: () => $("[data-first]")?.click(),
    o: openCurrent,
    c: () => {
      const ordinal = current()?.dataset.ordinal;
      const base = $("#timeline [data-base]")?.dataset.base;
      if (ordinal && base) copy(`${location.origin}${base}?at=${ordinal}#e${ordinal}`, `the link to event ${ordinal}`);
    },
    "[": () => $('[data-key="["]')?.click(),
    "]": () => $('[data-key="]"]')?.click(),
    "?": () => $("#keys")?.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable], dialog[open]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button.dataset.copy, button.getAttribute("aria-label").replace(/^Copy /, ""));
    if (event.target.closest("[data-theme-switch]")) switchTheme();
    if (event.target.closest("[data-print]")) print();
    if (event.target.closest("[data-help]")) $("#keys")?.showModal();
    const row = event.target.closest("a[data-open-row]");
    const link = row ? $("a[data-open]", row.closest("tbody")) : event.target.closest("a[data-open]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      open(link);
    }
    const first = event.target.closest("[data-first]");
    const stop = first && document.getElementById(`e${first.dataset.first}`);
    if (stop) {
      event.preventDefault();
      select(stop, false);
      stop.scrollIntoView({ block: "center" });
    }
  });
  // A page that loads itself anew keeps what the person has filled in and not yet sent. What was filled in is known from
  // the moment it was, for a page may be swapped again before the last swap has settled.
  const filled = new Map();
  const kept = "[data-keep] :is(input, select, textarea)[id]";
  document.addEventListener("input", ({ target }) => {
    if (target.matches?.(kept)) filled.set(target.id, target.type === "checkbox" ? target.checked : target.value);
  });
  const refill = () => {
    for (const field of $$(kept)) {
      const value = filled.get(field.id);
      if (value === undefined) continue;
      if (field.type === "checkbox") field.checked = value;
      else if (field.tagName !== "SELECT" || [...field.options].some((option) => option.value === value)) field.value = value;
    }
  };
  for (const moment of ["htmx:afterSwap", "htmx:afterSettle"]) document.addEventListener(moment, refill);

  // ---- forms that are answered within the page ----
  let answered = false, elsewhere = false;
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const ours = detail.target.id !== "page" || detail.xhr.responseText.includes('id="page"');
    answered = ours && detail.requestConfig.verb === "post";
    if (!ours) { // whatever stands before the console answered in its place: what is shown stays
      detail.shouldSwap = false;
      detail.isError = true;
    }
    if (!answered) return;
    document.activeElement?.blur(); // to take out what has the focus is dear: it asks for a layout of both pages
    detail.shouldSwap = true; // what is refused is answered with a page as well, which says why
    detail.isError = false;
  });
  document.addEventListener("htmx:pushedIntoHistory", () => {
    if (!answered) return;
    elsewhere = true;
    filled.clear(); // it was sent, and fields of the same name are others now
  });
  document.addEventListener("htmx:afterSwap", () => {
    if (!elsewhere) return;
    elsewhere = false;
    $("#main").focus({ preventScroll: true }); // as if it had been loaded: what is read aloud begins here
    arrive();
  });
  addEventListener("hashchange", arrive);
  document.addEventListener("change", (event) => { if (event.target.matches(".sieve select")) event.target.form.requestSubmit(); });
  // An empty field filters nothing, so it has no place in the address.
  document.addEventListener("htmx:configRequest", (event) => {
    if (!event.target.closest?.(".sieve")) return;
    for (const [name, value] of [...event.detail.formData.entries()]) if (value === "") event.detail.formData.delete(name);
  });
  document.addEventListener("htmx:responseError", (event) => say(`The console answered ${event.detail.xhr.status}`));
  document.addEventListener("htmx:sendError", () => say("The console does not answer; the page shows what it last knew"));

  // ---- dropping files on the import page ----
  const form = $("#import");
  const GUESSES = [
    ["bundle", /\.zip$/], ["snapshots", /snapshots/], ["snapshot", /snap/], ["traces", /trace/], ["intents", /intent/],
    ["outputs", /output/], ["errors", /error|dead/], ["events", /events/], ["event", /event|envelope/],
  ];
  const guess = (name) => GUESSES.find(([, pattern]) => pattern.test(name.toLowerCase()))?.[0];
  function put(role, files) {
    const input = $(`#file-${role}`);
    const transfer = new DataTransfer();
    for (const file of input.multiple ? [...input.files, ...files] : files) transfer.items.add(file);
    input.files = transfer.files;
    input.closest("details")?.setAttribute("open", "");
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }
  function dropped(event) {
    event.preventDefault();
    const row = event.target.closest?.("[data-role]");
    const lost = [];
    for (const file of event.dataTransfer.files) {
      const role = row?.dataset.role ?? guess(file.name);
      if (role) put(role, [file]); else lost.push(file.name);
    }
    if (lost.length) say(`Drop ${lost.join(", ")} on the row it belongs to: the name does not tell`);
  }
  function checkSizes(input) {
    const row = input.closest("[data-role]");
    const limit = Number(row.dataset.limit);
    const box = $("[data-too-large]", row);
    const large = [...input.files].filter((file) => file.size > limit);
    box.hidden = !large.length;
    box.textContent = large.map((file) => `${file.name} is ${(file.size / 1048576).toFixed(1)} MiB; at most ${limit / 1048576} MiB are taken. `).join("");
  }
  if (form) {
    let depth = 0;
    const mark = (on) => $("[data-drop]").classList.toggle("dragging", on);
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("dragenter", () => { depth += 1; mark(true); });
    addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) mark(false); });
    addEventListener("drop", (event) => { depth = 0; mark(false); dropped(event); });
    form.addEventListener("change", (event) => { if (event.target.type === "file") checkSizes(event.target); });
    form.addEventListener("submit", () => { const button = $("button.primary", form); button.disabled = true; button.textContent = "Importing…"; });
    addEventListener("pageshow", () => { const button = $("button.primary", form); button.disabled = false; button.textContent = "Import"; });
    $("#summary")?.focus();
  }

  $$("time").slice(0, 400).forEach(localTime);
  arrive();
})();
