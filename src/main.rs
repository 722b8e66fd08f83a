//! The front door: argv[0] or the subcommand decides the role; nothing else happens here.

fn main() {}
