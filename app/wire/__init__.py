"""The byte level: protobuf bindings, varint frames, deterministic encoding, identities and schema migrations."""
