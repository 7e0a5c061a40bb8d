//! The server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;

use forebay_client::{Client, Config, Credentials};

/// What the server does with one request.
pub enum Act {
    /// Answers with these bytes.
    Say(Vec<u8>),
    /// Reads the request and closes the connection.
    Hang,
    /// Reads what comes, and says nothing as long as the client stays.
    Silence,
}

/// Serves the acts in order and returns the heads of the requests that came.
pub fn script(acts: Vec<Act>) -> (Client, mpsc::Receiver<String>) {
    script_trying(3, acts)
}

/// The same to a client that makes so many attempts.
pub fn script_trying(attempts: u32, acts: Vec<Act>) -> (Client, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (heads, received) = mpsc::channel();
    thread::spawn(move || {
        let mut acts = acts.into_iter().peekable();
        while acts.peek().is_some() {
            let (mut stream, _) = listener.accept().unwrap();
            while acts.peek().is_some() {
                let Some(head) = read_request(&mut stream) else {
                    break;
                };
                // The test may have seen enough.
                let _ = heads.send(head);
                match acts.next().unwrap() {
                    Act::Say(bytes) => stream.write_all(&bytes).unwrap(),
                    Act::Hang => break,
                    Act::Silence => silence(&mut stream),
                }
            }
        }
    });
    let mut config = Config::new(endpoint.parse().unwrap(), credentials());
    config.attempts = attempts;
    (Client::new(config).unwrap(), received)
}

fn silence(stream: &mut TcpStream) {
    while read_request(stream).is_some() {}
}

/// Serves every request, on as many connections as come, with what `answer` makes of its head; for ever.
pub fn serve(answer: impl Fn(&str) -> Act + Send + Sync + 'static) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            thread::spawn(move || {
                while let Some(head) = read_request(&mut stream) {
                    match answer(&head) {
                        // The test may have seen enough.
                        Act::Say(bytes) => drop(stream.write_all(&bytes)),
                        Act::Hang => break,
                        Act::Silence => silence(&mut stream),
                    }
                }
            });
        }
    });
    let mut config = Config::new(endpoint.parse().unwrap(), credentials());
    config.attempts = 3;
    Client::new(config).unwrap()
}

pub fn credentials() -> Credentials {
    Credentials {
        access_key: "KEY".to_owned(),
        secret_key: "secret".to_owned(),
    }
}

pub fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let len = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |len| len.parse().unwrap());
    stream.read_exact(&mut vec![0; len]).ok()?;
    Some(head)
}

pub fn answer(status: &str, headers: &str, body: &[u8]) -> Act {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    Act::Say([head.as_bytes(), body].concat())
}

pub fn refusal(status: &str, code: &str) -> Act {
    let body =
        format!("<Error><Code>{code}</Code><Message>m</Message><RequestId>R</RequestId></Error>");
    answer(status, "", body.as_bytes())
}
