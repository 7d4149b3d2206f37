"""Cases against moq-rs (Rust, quinn)."""
