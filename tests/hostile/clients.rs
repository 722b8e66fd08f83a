//! Clients that send too much, too slowly, or too often.
