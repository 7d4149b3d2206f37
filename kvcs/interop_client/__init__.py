"""`moqt-interop-client`: `moqt.tools.relay_test` with a KV cache through the relay as well."""
