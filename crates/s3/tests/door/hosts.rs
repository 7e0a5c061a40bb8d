//! Buckets that the host names.

use forebay_s3::Config;

use crate::support::{ALPHA, Answer, Ask, Server};

const PART: usize = 5 << 20;

/// A server, and the name by which a client reaches a bucket.
struct Host<'a> {
    server: &'a Server,
    name: &'a str,
}

impl<'a> Host<'a> {
    /// Makes the bucket.
    async fn make(server: &'a Server, name: &'a str) -> Host<'a> {
        let host = Host { server, name };
        host.ask(Ask::new("PUT", "/")).await;
        host
    }

    async fn ask(&self, ask: Ask) -> Answer {
        let ask = ask.header("host", self.name);
        let what = format!("{} {} at {}", ask.method, ask.target(), self.name);
        let answer = self.server.ask(ALPHA, ask).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        answer
    }

    async fn get(&self, target: &str) -> Answer {
        self.ask(Ask::new("GET", target)).await
    }
}

async fn start() -> Server {
    let config = Config {
        domains: vec!["s3.example".to_owned()],
        ..Config::default()
    };
    Server::with(config, u64::MAX).await
}

/// What a bucket is reached by, and its name.
const HOSTS: [(&str, &str); 2] = [
    ("first.localhost:9000", "first"),
    ("second.s3.example", "second"),
];

#[tokio::test]
async fn a_bucket_that_the_host_names_is_made_filled_and_listed() {
    let server = start().await;
    for (name, bucket) in HOSTS {
        let host = Host::make(&server, name).await;
        // A key that begins as a path to the bucket does is a key.
        let own = format!("/{bucket}/key");
        for target in ["/a/1", "/a/2", "/b", &own] {
            host.ask(Ask::new("PUT", target).body(target)).await;
        }
        let path = format!("/{bucket}{own}");
        assert_eq!(server.get(&path).await.text(), own);
        for list in ["/?list-type=2&", "/?"] {
            let page = host.get(&format!("{list}prefix=a%2F&max-keys=1")).await;
            assert_eq!(page.element("Name").as_deref(), Some(bucket));
            assert_eq!(page.element("Key").as_deref(), Some("a/1"));
            assert_eq!(page.element("IsTruncated").as_deref(), Some("true"));
            let rolled = host.get(&format!("{list}delimiter=%2F")).await.text();
            assert_eq!(rolled.matches("<Contents>").count(), 1, "{rolled}");
            assert_eq!(rolled.matches("<CommonPrefixes>").count(), 2, "{rolled}");
        }
        let versions = host.get("/?versions").await;
        assert_eq!(versions.text().matches("<Version>").count(), 4);
        let by_path = server.get(&format!("/{bucket}?list-type=2")).await.text();
        assert_eq!(host.get("/?list-type=2").await.text(), by_path);
    }
    server.finish().await;
}

#[tokio::test]
async fn an_object_in_parts_comes_to_be_where_the_host_says() {
    let server = start().await;
    for (name, bucket) in HOSTS {
        let host = Host::make(&server, name).await;
        host.ask(Ask::new("PUT", "/source").body(b"the end")).await;
        let begun = host.ask(Ask::new("POST", "/a%20b/c?uploads")).await;
        assert_eq!(begun.element("Bucket").as_deref(), Some(bucket));
        assert_eq!(begun.element("Key").as_deref(), Some("a b/c"));
        let id = begun.element("UploadId").expect("an upload");
        let upload = format!("/a%20b/c?uploadId={id}");
        let first = Ask::new("PUT", &format!("{upload}&partNumber=1")).body(vec![1; PART]);
        let one = host.ask(first).await.etag();
        let second = Ask::new("PUT", &format!("{upload}&partNumber=2"))
            .header("x-amz-copy-source", &format!("{bucket}/source"));
        let two = host.ask(second).await.element("ETag").expect("a tag");
        let parts = host.get(&upload).await.text();
        assert_eq!(parts.matches("<Part>").count(), 2, "{parts}");
        let uploads = host.get("/?uploads").await;
        assert_eq!(uploads.element("UploadId"), Some(id));
        let list = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{one}</ETag></Part>\
             <Part><PartNumber>2</PartNumber><ETag>{two}</ETag></Part></CompleteMultipartUpload>"
        );
        let done = host.ask(Ask::new("POST", &upload).body(list)).await;
        // Whoever follows it finds the object.
        let location = format!("http://{name}/a%20b/c");
        assert_eq!(done.element("Location"), Some(location));
        let whole = [&vec![1; PART][..], b"the end"].concat();
        assert!(host.get("/a%20b/c").await.body == whole);
        let by_path = server.get(&format!("/{bucket}/a%20b/c")).await;
        assert!(by_path.body == whole);
    }
    server.finish().await;
}

#[tokio::test]
async fn a_copy_goes_where_the_host_says_from_where_its_source_says() {
    let server = start().await;
    let [(first, _), (second, _)] = HOSTS;
    let first = Host::make(&server, first).await;
    let second = Host::make(&server, second).await;
    first
        .ask(Ask::new("PUT", "/key").body(b"of the first"))
        .await;
    for to in [first, second] {
        let copy = Ask::new("PUT", "/copy").header("x-amz-copy-source", "/first/key");
        to.ask(copy).await;
        assert_eq!(to.get("/copy").await.text(), "of the first");
    }
    for path in ["/first/copy", "/second/copy"] {
        assert_eq!(server.get(path).await.text(), "of the first");
    }
    server.get("/second/key").await.is(404, "NoSuchKey");
    server.finish().await;
}
