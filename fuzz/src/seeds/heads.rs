//! Requests for the guard in front of hyper.

use super::{own, with_prefix};

/// Requests of clients and of attackers. The first two bytes set the pieces and the room.
pub fn heads() -> Vec<Vec<u8>> {
    let mut seeds = with_prefix(&[0, 0], own(&REQUESTS));
    seeds.extend(with_prefix(&[3, 0], own(&REQUESTS)));
    seeds.extend(with_prefix(&[200, 0], own(&REQUESTS)));
    // Two bytes are abbreviations: one repeats a byte for some KiB, the other stands for some header lines.
    let large: [&[u8]; 8] = [
        b"\x40\x80GET /\xfe\x20 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"\x00\x80GET / HTTP/1.1\r\nA: b\xfe\x9f\r\n\r\n",
        b"\xc0\x80GET / HTTP/1.1\r\nA: b\xfe\xa0\r\n\r\n",
        b"\x7f\x02GET / HTTP/1.1\r\nA: b\xfe\x10\r\nB: c\xfe\x02\r\n\r\n",
        b"\x00\x00GET / HTTP/1.1\r\n\xfd\x80\r\nGET / HTTP/1.1\r\n\r\n",
        b"\x40\x00GET / HTTP/1.1\r\n\xfd\x80Host: a\r\n\r\n",
        b"\x40\x00POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;e\xfe\x14\r\nab\r\n0\r\nT: t\xfe\x14\r\n\r\n",
        b"\x40\x00POST / HTTP/1.1\r\nContent-Length: 2049\r\n\r\nb\xfe\x02GET / HTTP/1.1\r\n\r\n",
    ];
    seeds.extend(large.map(<[u8]>::to_vec));
    // As long as the line of a chunk length may be, and one byte longer.
    for zeros in [110, 111] {
        let length = format!("\u{7}\0POST / HTTP/1.1\r\nContent-Length: {}5\r\n\r\n12345", "0".repeat(zeros));
        seeds.push(length.into_bytes());
    }
    seeds
}

const REQUESTS: [&str; 14] = [
    "GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n\r\nGET /c HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
    "POST / HTTP/1.1\r\ncontent-length:\t5 \r\nContent-Length: 5\r\n\r\n12\n45DELETE http://h/ HTTP/1.1\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\nA \t;x=y\r\n01234\r\n789\r\n00;\r\nT: a\r\nU: b\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nCONTENT-LENGTH: 5\r\nA: b\r\ntransfer-encoding: identity\r\n\r\n12345",
    "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
    "POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n1",
    "GET / HTTP/1.1\nHost: a\r\n\r\n",
    "GET / HTTP/1.1\r\nA: b\n\r\nGET / HTTP/1.1\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nxGET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "CONNECT a:1 HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade, close\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length : 5\r\n Content-Length: 5\r\nTransfer-Encoding\r\n\r\nGET / HTTP/1.1\r\n\r\n",
];
