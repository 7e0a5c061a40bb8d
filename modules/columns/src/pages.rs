//! The pages of a Parquet file, whatever they are compressed by: what `parquet` unpacks only with a library in C is unpacked here.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use ::parquet::arrow::arrow_reader::RowGroups;
use ::parquet::basic::Compression;
use ::parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use ::parquet::file::reader::ChunkReader;
use ::parquet::file::serialized_reader::SerializedPageReader;
use ruzstd::decoding::StreamingDecoder;

/// The pages of all columns of a file.
pub struct Pages<F> {
    pub file: Arc<F>,
    pub metadata: Arc<ParquetMetaData>,
}

impl<F: ChunkReader + 'static> RowGroups for Pages<F> {
    fn num_rows(&self) -> usize {
        let rows = self.row_groups().map(|group| group.num_rows() as usize);
        rows.sum()
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        Ok(Box::new(Chunks {
            file: self.file.clone(),
            groups: 0..self.metadata.num_row_groups(),
            metadata: self.metadata.clone(),
            column,
        }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.metadata.row_groups().iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The chunks of one column.
struct Chunks<F> {
    file: Arc<F>,
    metadata: Arc<ParquetMetaData>,
    groups: Range<usize>,
    column: usize,
}

impl<F: ChunkReader + 'static> Chunks<F> {
    fn pages(&self, group: usize) -> Result<Box<dyn PageReader>> {
        let group = self.metadata.row_group(group);
        let (column, rows) = (group.column(self.column), group.num_rows() as usize);
        let file = self.file.clone();
        if !matches!(column.compression(), Compression::ZSTD(_)) {
            let pages = SerializedPageReader::new(file, column, rows, None)?;
            return Ok(Box::new(pages));
        }
        let packed = column.clone().into_builder();
        let packed = packed.set_compression(Compression::UNCOMPRESSED).build()?;
        Ok(Box::new(Unpacking {
            packed: SerializedPageReader::new(file, &packed, rows, None)?,
            most: u64::try_from(column.uncompressed_size())?,
        }))
    }
}

impl<F: ChunkReader + 'static> Iterator for Chunks<F> {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.groups.next()?;
        Some(self.pages(group))
    }
}

impl<F: ChunkReader + 'static> PageIterator for Chunks<F> {}

/// Pages that are compressed by Zstandard.
struct Unpacking<F: ChunkReader> {
    /// The same as they lie in the file.
    packed: SerializedPageReader<F>,
    /// No page has more bytes than the column says of all of them.
    most: u64,
}

impl<F: ChunkReader> Unpacking<F> {
    fn unpacked(&self, mut page: Page) -> Result<Page> {
        let levels = match &page {
            Page::DataPageV2 {
                is_compressed: false,
                ..
            } => return Ok(page),
            // These lie before what is compressed.
            Page::DataPageV2 {
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => def_levels_byte_len.saturating_add(*rep_levels_byte_len) as usize,
            Page::DataPage { .. } | Page::DictionaryPage { .. } => 0,
        };
        let (Page::DataPage { buf, .. }
        | Page::DataPageV2 { buf, .. }
        | Page::DictionaryPage { buf, .. }) = &mut page;
        let Some((levels, mut packed)) = buf.split_at_checked(levels) else {
            return Err(general("a page is shorter than its levels"));
        };
        let mut bytes = levels.to_vec();
        while !packed.is_empty() {
            let frame = StreamingDecoder::new(&mut packed).map_err(general)?;
            let room = self.most.saturating_sub(bytes.len() as u64);
            let mut frame = frame.take(room + 1);
            frame.read_to_end(&mut bytes)?;
            if bytes.len() as u64 > self.most {
                return Err(general("a page has more bytes than its column"));
            }
            let frame = frame.into_inner().into_frame_decoder();
            let checksum = frame.get_checksum_from_data();
            if checksum.is_some() && checksum != frame.get_calculated_checksum() {
                return Err(general("the checksum of a page is not that of its content"));
            }
        }
        *buf = bytes.into();
        Ok(page)
    }
}

fn general(error: impl ToString) -> ParquetError {
    ParquetError::General(error.to_string())
}

impl<F: ChunkReader> Iterator for Unpacking<F> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<F: ChunkReader> PageReader for Unpacking<F> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.packed.get_next_page()?;
        page.map(|page| self.unpacked(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.packed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.packed.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.packed.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        let page = self.packed.take_deferred_dictionary()?;
        page.map(|page| self.unpacked(page)).transpose()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.packed.at_record_boundary()
    }
}
