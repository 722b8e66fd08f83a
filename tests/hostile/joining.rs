//! Machines that join, or pretend to, with tokens and certificates that give less than they ask for.
