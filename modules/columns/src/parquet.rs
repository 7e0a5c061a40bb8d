//! Columns of Parquet files.

use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom};
use std::sync::Arc;

use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
};
use ::parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::reader::{ChunkReader, Length};
use arrow_array::RecordBatchReader;
use bytes::Bytes;
use forebay_module::{Input, Reader};

use crate::pages::Pages;
use crate::{BATCH_ROWS, Sink, plain};

/// What is read at once of what has no length that is known before: pages' headers, which are a few dozen bytes unless they
/// hold statistics. The pages themselves are read apart.
const HEADER_BYTES: usize = 256;

/// An input of which pieces are read.
struct File(Input);

impl Length for File {
    fn len(&self) -> u64 {
        self.0.size()
    }
}

impl ChunkReader for File {
    type T = Reader;

    fn get_read(&self, start: u64) -> ParquetResult<Reader> {
        let mut reader = self.0.reader_by(HEADER_BYTES);
        reader.seek(SeekFrom::Start(start))?;
        Ok(reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        // A length that is a lie shall not cost memory.
        if start
            .checked_add(length as u64)
            .is_none_or(|end| end > self.0.size())
        {
            return Err(ParquetError::EOF("a piece behind the end".to_owned()));
        }
        let mut bytes = vec![0; length];
        let read = self.0.read(start, &mut bytes);
        bytes.truncate(read);
        Ok(bytes.into())
    }
}

pub fn project(input: Input, columns: &[String], sink: &mut Sink) -> Result<(), String> {
    let file = Arc::new(File(input));
    let table = ArrowReaderMetadata::load(&*file, ArrowReaderOptions::default()).map_err(plain)?;
    let wanted: BTreeSet<&str> = columns.iter().map(String::as_str).collect();
    let fields = table.schema().fields().clone();
    if let Some(column) = wanted.iter().find(|column| fields.find(column).is_none()) {
        return Err(format!("there is no column {column}"));
    }
    let roots = fields.iter().enumerate();
    let roots =
        roots.filter(|(_, field)| wanted.is_empty() || wanted.contains(field.name().as_str()));
    let mask = ProjectionMask::roots(table.parquet_schema(), roots.map(|(at, _)| at));
    let levels = parquet_to_arrow_field_levels(table.parquet_schema(), mask, Some(&fields));
    let levels = levels.map_err(plain)?;
    let pages = Pages {
        metadata: table.metadata().clone(),
        file,
    };
    let rows = ParquetRecordBatchReader::try_new_with_row_groups(&levels, &pages, BATCH_ROWS, None);
    let rows = rows.map_err(plain)?;
    sink.open(&rows.schema())?;
    for batch in rows {
        sink.put(&batch.map_err(plain)?)?;
    }
    Ok(())
}
