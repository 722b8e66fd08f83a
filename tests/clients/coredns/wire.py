"""Questions and answers of DNS as bytes, as far as a comparison needs them."""

import socket
import struct

TYPES = {"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "HINFO": 13, "MX": 15, "TXT": 16, "AAAA": 28, "SRV": 33,
         "OPT": 41, "ANY": 255}
NAMES = {number: name for name, number in TYPES.items()}
CODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


def name_bytes(name):
    labels = [label for label in name.rstrip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"


def question(name, kind, number, edns=False):
    head = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 1 if edns else 0)
    more = b"\0" + struct.pack(">HHIH", 41, 1232, 0, 0) if edns else b""
    return head + name_bytes(name) + struct.pack(">HH", TYPES[kind], 1) + more


def read_name(data, at):
    labels, jumps, end = [], 0, None
    while True:
        length = data[at]
        if length & 0xC0 == 0xC0:
            end = end or at + 2
            at = (length & 0x3F) << 8 | data[at + 1]
            jumps += 1
            assert jumps < 128, "a name in a circle"
        elif length == 0:
            return ".".join(labels) + ".", end or at + 1
        else:
            labels.append(data[at + 1:at + 1 + length].decode("latin-1"))
            at += 1 + length


def rdata(data, at, length, kind):
    if kind in ("NS", "CNAME", "PTR"):
        return read_name(data, at)[0]
    if kind == "MX":
        return "%d %s" % (struct.unpack_from(">H", data, at)[0], read_name(data, at + 2)[0])
    if kind == "SRV":
        target = read_name(data, at + 6)[0]
        # whoami's names the port of the client, which is another one for each question.
        priority, _, port = struct.unpack_from(">HHH", data, at)
        # Weights are equal shares of 100: CoreDNS divides before it takes records together that are the same.
        return "%s %s" % ("a port" if target == "." else "%d %d" % (priority, port), target)
    if kind == "SOA":
        server, at = read_name(data, at)
        mailbox, at = read_name(data, at)
        serial, *times = struct.unpack_from(">IIIII", data, at)
        # The cluster's zone has no serial that means anything: CoreDNS's is the time of the last change, ours is 1.
        return "%s %s %s %s" % (server, mailbox, 1 if serial > 10**9 else serial, times)
    if kind == "A":
        return socket.inet_ntop(socket.AF_INET, data[at:at + 4])
    if kind == "AAAA":
        return socket.inet_ntop(socket.AF_INET6, data[at:at + 16])
    return data[at:at + length].hex()


def answer(data):
    """Code, flags and the three sections; records as (name, type, ttl, data)."""
    _, flags, n_questions, *counts = struct.unpack_from(">HHHHHH", data, 0)
    at = 12
    for _ in range(n_questions):
        at = read_name(data, at)[1] + 4
    sections = []
    for count in counts:
        records = []
        for _ in range(count):
            name, at = read_name(data, at)
            kind, _class, ttl, length = struct.unpack_from(">HHIH", data, at)
            kind = NAMES.get(kind, str(kind))
            if kind != "OPT":
                records.append((name, kind, ttl, rdata(data, at + 10, length, kind)))
            at += 10 + length
        sections.append(records)
    set_flags = [name for bit, name in ((0x400, "aa"), (0x200, "tc")) if flags & bit]
    return CODES.get(flags & 15, str(flags & 15)), set_flags, sections


def ask(port, name, kind, number=7, edns=False, limit=5.0):
    """The answer, or None where nothing comes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(limit)
        client.connect(("127.0.0.1", port))
        client.send(question(name, kind, number, edns))
        try:
            return answer(client.recv(65535))
        except (TimeoutError, ConnectionRefusedError):
            return None
