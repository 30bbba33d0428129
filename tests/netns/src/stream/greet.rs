//! Greeting by which the two ends of a connection agree on its session.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MAGIC: [u8; 8] = *b"\0session";
pub(crate) const PROXY_V2: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Performs the client's part: sends the number of the session and waits until the server has
/// received it, so that all hosts between have opened their subsessions. A middlebox may have
/// inserted a PROXY header before the answer.
pub(crate) async fn client(stream: &mut TcpStream, id: u64, web_socket: bool) -> io::Result<()> {
    if web_socket {
        let ask = "GET /ws HTTP/1.1\r\nHost: lab\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        stream.write_all(ask.as_bytes()).await?;
        let head = head(stream, Vec::new()).await?;
        if !head.starts_with(b"HTTP/1.1 101 ") {
            return Err(io::Error::other(
                String::from_utf8_lossy(&head).into_owned(),
            ));
        }
    }
    let mut hello = [0; 16];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..].copy_from_slice(&id.to_be_bytes());
    stream.write_all(&hello).await?;
    let mut heard = stream.read_u64().await?;
    if PROXY_V2.starts_with(&heard.to_be_bytes()) {
        let mut head = [0; 8];
        stream.read_exact(&mut head).await?;
        let rest = usize::from(u16::from_be_bytes([head[6], head[7]]));
        stream.read_exact(&mut vec![0; rest]).await?;
        heard = stream.read_u64().await?;
    }
    if heard == id {
        Ok(())
    } else {
        Err(io::Error::other("the server heard another session"))
    }
}

/// Performs the server's part: accepts a PROXY header or an upgrade to WebSocket if there is one,
/// and returns the number of the session.
pub(crate) async fn server(stream: &mut TcpStream) -> io::Result<u64> {
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).await?;
    if hello[..12] == PROXY_V2 {
        let rest = usize::from(u16::from_be_bytes([hello[14], hello[15]]));
        stream.read_exact(&mut vec![0; rest]).await?;
        stream.read_exact(&mut hello).await?;
    }
    if hello.starts_with(b"GET ") {
        head(stream, hello.to_vec()).await?;
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\n\
                      Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        stream.write_all(answer.as_bytes()).await?;
        stream.read_exact(&mut hello).await?;
    }
    if hello[..8] != MAGIC {
        return Err(io::Error::other(format!("an unknown greeting: {hello:x?}")));
    }
    let mut id = [0; 8];
    id.copy_from_slice(&hello[8..]);
    stream.write_all(&id).await?;
    Ok(u64::from_be_bytes(id))
}

/// Reads to the end of an HTTP head and no further.
async fn head(stream: &mut TcpStream, mut head: Vec<u8>) -> io::Result<Vec<u8>> {
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}
