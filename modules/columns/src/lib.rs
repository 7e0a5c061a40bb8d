//! Some columns of a table, as an Arrow IPC stream.
//!
//! `run [COLUMN...]` looks at each input's first bytes and takes it for Parquet or CSV; `parquet` and `csv` do not look. The columns
//! named, or all of them, are written in the order that the table has them. All inputs have to have the same.
//!
//! - Of a Parquet file only what the columns need is read. Columns may be nested: a name is that of a top-level field. Pages may be
//!   plain or compressed by Snappy, LZ4, gzip or Zstandard, not by Brotli.
//! - A CSV file (RFC 4180) begins with the columns' names. Fields are strings unless a type follows the column: `name:i64`,
//!   `name:f64`, `name:bool`; an empty field of such a column is null. `--delimiter=;` before the columns tells another than the comma.

mod csv;
mod pages;
mod parquet;

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use forebay_module::{Input, Output, export, inputs, words};

export!(run, csv, parquet);

/// Rows that are written together.
const BATCH_ROWS: usize = 8192;

fn run() -> Result<(), String> {
    let words = words();
    let options = csv::Options::of(&words)?;
    project(|input, sink| match is_parquet(&input) {
        true => parquet::project(input, &words, sink),
        false => csv::project(input, &options, sink),
    })
}

fn is_parquet(input: &Input) -> bool {
    let mut magic = [0; 4];
    input.read(0, &mut magic) == 4 && magic == *b"PAR1"
}

fn csv() -> Result<(), String> {
    let options = csv::Options::of(&words())?;
    project(|input, sink| csv::project(input, &options, sink))
}

fn parquet() -> Result<(), String> {
    let columns = words();
    project(|input, sink| parquet::project(input, &columns, sink))
}

/// Takes batches; the first one's schema is the stream's.
#[derive(Default)]
struct Sink {
    stream: Option<(SchemaRef, StreamWriter<Output>)>,
}

impl Sink {
    /// Begins the stream, or makes sure that it can go on with another table.
    fn open(&mut self, schema: &SchemaRef) -> Result<(), String> {
        match &self.stream {
            Some((first, _)) if first.fields() == schema.fields() => Ok(()),
            Some(_) => Err("the inputs have different columns".to_owned()),
            None => {
                let stream = StreamWriter::try_new(Output::default(), schema);
                self.stream = Some((SchemaRef::clone(schema), stream.map_err(plain)?));
                Ok(())
            }
        }
    }

    fn put(&mut self, batch: &RecordBatch) -> Result<(), String> {
        let (_, stream) = self.stream.as_mut().ok_or("no stream was begun")?;
        stream.write(batch).map_err(plain)
    }
}

fn project(each: impl Fn(Input, &mut Sink) -> Result<(), String>) -> Result<(), String> {
    let mut sink = Sink::default();
    for input in inputs() {
        each(input, &mut sink)?;
    }
    let (_, mut stream) = sink.stream.ok_or("there is no input")?;
    stream.finish().map_err(plain)
}

fn plain(error: impl std::fmt::Display) -> String {
    error.to_string()
}
