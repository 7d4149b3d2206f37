"""`make bench`: KVCS beside what else moves octets, on one machine, in interleaved rounds."""
