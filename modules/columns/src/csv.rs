//! Columns of CSV files.

use std::io::BufRead;
use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use csv_core::{ReadRecordResult, ReaderBuilder};
use forebay_module::{Input, Reader};

use crate::{BATCH_ROWS, Sink, plain};

/// A record longer than this is none.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// So are more fields.
const FIELDS_MAX: usize = 65_536;

/// What is asked for.
pub struct Options {
    delimiter: u8,
    columns: Vec<(String, DataType)>,
}

impl Options {
    pub fn of(words: &[String]) -> Result<Options, String> {
        let mut options = Options {
            delimiter: b',',
            columns: Vec::new(),
        };
        for word in words {
            if let Some(delimiter) = word.strip_prefix("--delimiter=") {
                let &[delimiter] = delimiter.as_bytes() else {
                    return Err(format!("{word}: a delimiter is one byte"));
                };
                options.delimiter = delimiter;
                continue;
            }
            let (name, kind) = match word.rsplit_once(':') {
                Some((name, "i64")) => (name, DataType::Int64),
                Some((name, "f64")) => (name, DataType::Float64),
                Some((name, "bool")) => (name, DataType::Boolean),
                Some((name, "utf8")) => (name, DataType::Utf8),
                _ => (word.as_str(), DataType::Utf8),
            };
            options.columns.push((name.to_owned(), kind));
        }
        Ok(options)
    }
}

/// A column that is being put together.
enum Column {
    Int64(Int64Builder),
    Float64(Float64Builder),
    Boolean(BooleanBuilder),
    Utf8(StringBuilder),
}

impl Column {
    fn new(kind: &DataType) -> Column {
        match kind {
            DataType::Int64 => Column::Int64(Int64Builder::new()),
            DataType::Float64 => Column::Float64(Float64Builder::new()),
            DataType::Boolean => Column::Boolean(BooleanBuilder::new()),
            _ => Column::Utf8(StringBuilder::new()),
        }
    }

    /// False when the field is not of the column's type.
    fn put(&mut self, field: &str) -> bool {
        fn parsed<T: std::str::FromStr>(field: &str, append: impl FnOnce(Option<T>)) -> bool {
            let value = field.parse().ok();
            let well = field.is_empty() || value.is_some();
            append(value);
            well
        }
        match self {
            Column::Int64(column) => parsed(field, |value| column.append_option(value)),
            Column::Float64(column) => parsed(field, |value| column.append_option(value)),
            Column::Boolean(column) => parsed(&field.to_ascii_lowercase(), |value| {
                column.append_option(value)
            }),
            Column::Utf8(column) => {
                column.append_value(field);
                true
            }
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Column::Int64(column) => Arc::new(column.finish()),
            Column::Float64(column) => Arc::new(column.finish()),
            Column::Boolean(column) => Arc::new(column.finish()),
            Column::Utf8(column) => Arc::new(column.finish()),
        }
    }
}

/// Records of a file, one at a time.
struct Records {
    file: Reader,
    parser: csv_core::Reader,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    fields: usize,
    line: u64,
}

impl Records {
    /// Whether there was another record.
    fn next(&mut self) -> Result<bool, String> {
        let (mut filled, mut fields) = (0, 0);
        loop {
            let piece = self.file.fill_buf().map_err(plain)?;
            let (result, read, wrote, ended) =
                self.parser
                    .read_record(piece, &mut self.bytes[filled..], &mut self.ends[fields..]);
            self.file.consume(read);
            filled += wrote;
            fields += ended;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if filled < RECORD_BYTES_MAX => {
                    self.bytes.resize(self.bytes.len() * 2, 0);
                }
                ReadRecordResult::OutputEndsFull if fields < FIELDS_MAX => {
                    self.ends.resize(self.ends.len() * 2, 0);
                }
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    return Err(format!("record {}: too long", self.line));
                }
                ReadRecordResult::Record => {
                    (self.fields, self.line) = (fields, self.line + 1);
                    return Ok(true);
                }
                ReadRecordResult::End => return Ok(false),
            }
        }
    }

    fn field(&self, at: usize) -> Result<&str, String> {
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        let field = std::str::from_utf8(&self.bytes[begin..self.ends[at]]);
        field.map_err(|_| format!("record {}: no UTF-8", self.line))
    }
}

pub fn project(input: Input, options: &Options, sink: &mut Sink) -> Result<(), String> {
    let mut records = Records {
        file: input.reader(),
        parser: ReaderBuilder::new().delimiter(options.delimiter).build(),
        bytes: vec![0; 64 << 10],
        ends: vec![0; 256],
        fields: 0,
        line: 0,
    };
    if !records.next()? {
        return Err("a file without the columns' names".to_owned());
    }
    let width = records.fields;
    let mut places = Vec::new();
    let mut fields = Vec::new();
    for at in 0..width {
        let name = records.field(at)?;
        let asked = options.columns.iter().find(|(asked, _)| asked == name);
        let kind = match asked {
            Some((_, kind)) => kind.clone(),
            None if options.columns.is_empty() => DataType::Utf8,
            None => continue,
        };
        places.push(at);
        fields.push(Field::new(name, kind, true));
    }
    let there = |column: &&(String, DataType)| fields.iter().any(|field| field.name() == &column.0);
    if let Some((column, _)) = options.columns.iter().find(|column| !there(column)) {
        return Err(format!("there is no column {column}"));
    }
    let schema = Arc::new(Schema::new(fields));
    sink.open(&schema)?;
    let mut columns: Vec<Column> = schema
        .fields()
        .iter()
        .map(|field| Column::new(field.data_type()))
        .collect();
    let mut rows = 0;
    loop {
        let more = records.next()?;
        if !more || rows == BATCH_ROWS {
            if rows > 0 {
                let arrays = columns.iter_mut().map(Column::finish).collect();
                let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).map_err(plain)?;
                sink.put(&batch)?;
            }
            rows = 0;
        }
        if !more {
            return Ok(());
        }
        if records.fields != width {
            return Err(format!(
                "record {}: {} fields of {width}",
                records.line, records.fields
            ));
        }
        for (column, at) in columns.iter_mut().zip(&places) {
            let field = records.field(*at)?;
            if !column.put(field) {
                return Err(format!(
                    "record {}: {field} is not of its column's type",
                    records.line
                ));
            }
        }
        rows += 1;
    }
}
