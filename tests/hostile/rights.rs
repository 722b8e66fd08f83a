//! Users, nodes and service accounts that ask for more than they may.
