//! Session files: the tokens of a session and its cache rows, kept so that a conversation goes on without computing them again.
//!
//! A file is only ever appended to. Records form groups, and the last record of a group commits it. What ends the writing early leaves
//! the last whole commit as it was. docs/sessions.md has the format, what is guaranteed, and what it costs.

mod error;
mod identity;
mod kept;
mod opening;
mod record;
mod replay;
mod shorter;

pub use error::SessionFileError;
pub(super) use identity::Identity;

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use identity::Writer;
use kept::{Change, Extent, Kept};
use opening::failed;
use record::{AROUND, HEAD, Kind};

use super::session::Lineage;
use super::{Engine, EngineError, Opened, Session};

/// Tokens and cache rows that a session file keeps.
pub(super) trait Source: Send {
    /// The engine that computes the rows.
    fn engine(&self) -> &Engine;

    /// All tokens, in order.
    fn tokens(&self) -> &[u32];

    /// The number of these tokens that have their cache rows.
    fn cached(&self) -> usize;

    /// The lineage of the rows, which tells whether they are those of the last save.
    fn lineage(&self) -> &Lineage;

    /// The cache rows at `positions`.
    fn read_rows(
        &mut self,
        positions: Range<usize>,
    ) -> impl Future<Output = Result<Vec<u8>, EngineError>> + Send;
}

impl Source for Session {
    fn engine(&self) -> &Engine {
        Session::engine(self)
    }

    fn tokens(&self) -> &[u32] {
        Session::tokens(self)
    }

    fn cached(&self) -> usize {
        Session::cached(self)
    }

    fn lineage(&self) -> &Lineage {
        Session::lineage(self)
    }

    async fn read_rows(&mut self, positions: Range<usize>) -> Result<Vec<u8>, EngineError> {
        Session::read_rows(self, positions).await
    }
}

/// A session file, open and locked.
pub struct SessionFile {
    path: PathBuf,
    file: File,
    /// Bytes of the header.
    header: u64,
    /// The position after the last byte that counts.
    end: u64,
    /// Whether something may stand behind `end` that a write left unfinished.
    torn: bool,
    kept: Kept,
    /// The computations that the rows of the file come from, where a session knows.
    lineage: Option<Lineage>,
    /// The identity in the file. Its rows may have the prediction layer where the engine has not, or the other way round.
    identity: Identity,
    /// The identity of the engine's model.
    own: Identity,
    /// The writer of the rows that this engine computes.
    writer: Writer,
    differs: Option<String>,
}

impl SessionFile {
    /// Checks what can be told of the file at `path` before the weights of a model are loaded: [`open`](Self::open) would refuse it, too.
    /// Nothing is opened or begun.
    ///
    /// # Errors
    /// [`SessionFileError`]: no folder for it, no session file, of another model or a later version.
    pub fn check(path: &Path, opened: &Opened) -> Result<(), SessionFileError> {
        let identity = Identity::of(opened)?;
        opening::check(path, &identity)
    }

    /// Opens the file at `path` for `engine`, or begins it. It is locked against other processes until it is dropped. What a process
    /// that was ended has left unfinished behind the last commit is cut off. The rows are not read before they are
    /// [restored](Self::restore).
    ///
    /// # Errors
    /// [`SessionFileError`]: in use, no session file, of another model or a later version, damaged, or what the system says.
    pub fn open(path: &Path, engine: &Engine) -> Result<Self, SessionFileError> {
        let own = engine.identity()?.clone();
        let mut file = opening::open_locked(path)?;
        let (header, identity) = opening::check_or_begin(path, &mut file, &own)?;
        let read = replay::replay(path, &mut file, header, identity.row_bytes())?;
        let writer = Writer::of(engine);
        let mut writers = read.kept.writers.iter();
        let differs = writers.find_map(|(_, then)| then.difference(&writer));
        let mut opened = Self {
            path: path.to_owned(),
            file,
            header,
            end: read.end,
            torn: true,
            kept: read.kept,
            lineage: None,
            identity,
            own,
            writer,
            differs,
        };
        opened.cut_torn()?;
        Ok(opened)
    }

    /// The application's own data of the last commit; empty in a new file.
    pub fn data(&self) -> &[u8] {
        &self.kept.data
    }

    /// The tokens that are kept: those of the last commit, and those journaled since.
    pub fn tokens(&self) -> &[u32] {
        &self.kept.tokens
    }

    /// The number of tokens that have their cache rows. The others are computed with the next prompt.
    pub fn cached(&self) -> usize {
        self.kept.rows()
    }

    /// The differences between the writers of the rows and this engine, as a sentence without a capital and a full stop. Where it is
    /// `None`, a restored session goes on bit for bit.
    pub fn differs(&self) -> Option<&str> {
        self.differs.as_deref()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts tokens and rows into `session`, in place of what it had. Nothing is computed.
    ///
    /// # Errors
    /// [`SessionFileError`]: another engine, no room in the context, damaged rows, or what the device reports. The session is then empty,
    /// or as it was.
    pub async fn restore(&mut self, session: &mut Session) -> Result<(), SessionFileError> {
        self.check_engine(session.engine())?;
        self.check_room(session.engine().n_ctx())?;
        session.resume(&self.kept.tokens)?;
        let put = self.put_rows(session).await;
        if put.is_err() {
            session.reset();
        }
        put?;
        self.lineage = Some(session.lineage().clone());
        Ok(())
    }

    /// Checks that its tokens have room in a context of `n_ctx` tokens.
    ///
    /// # Errors
    /// [`SessionFileError::TooLong`].
    pub(super) fn check_room(&self, n_ctx: usize) -> Result<(), SessionFileError> {
        let (path, tokens) = (&self.path, self.kept.tokens.len());
        match tokens > n_ctx {
            true => Err(SessionFileError::TooLong {
                path: path.clone(),
                tokens,
                n_ctx,
            }),
            false => Ok(()),
        }
    }

    async fn put_rows(&mut self, session: &mut Session) -> Result<(), SessionFileError> {
        for i in 0..self.extents() {
            let (_, rows) = self.rows(i)?;
            session.push_rows(&rows).await?;
        }
        Ok(())
    }

    /// Bytes of the file that count.
    pub(super) fn bytes(&self) -> u64 {
        self.end
    }

    /// The number of records with rows.
    pub(super) fn extents(&self) -> usize {
        self.kept.extents.len()
    }

    /// The position of the first row of an extent, and its rows, checked, as the engine has them. Rows of the prediction layer that are not in
    /// the file are zeros: drafts are worse until there are further tokens, and the text is the same.
    pub(super) fn rows(&mut self, extent: usize) -> Result<(usize, Vec<u8>), SessionFileError> {
        let Extent { first, end, .. } = self.kept.extents[extent];
        let rows = self.rows_there(extent)?;
        Ok((first, fitted(rows, end - first, &self.own)))
    }

    /// The rows of an extent as the file has them, checked.
    fn rows_there(&mut self, extent: usize) -> Result<Vec<u8>, SessionFileError> {
        let Extent {
            first,
            end,
            at,
            before,
        } = self.kept.extents[extent];
        let bytes = (end - first) as u64 * self.identity.row_bytes() + 8;
        let read = self.file.seek(SeekFrom::Start(at + HEAD));
        let read = read.and_then(|_| replay::payload_of(&mut self.file, at, bytes as u32));
        match read.map_err(failed(&self.path, "cannot read"))? {
            Some(mut payload) => {
                payload.drain(..8);
                Ok(payload)
            }
            None => {
                let difference = replay::OTHER_CHECKSUM;
                Err(SessionFileError::damaged(
                    &self.path, at, difference, before,
                ))
            }
        }
    }

    /// Appends what changed since the last save, as one commit: tokens that were forgotten, new tokens, their rows, and `data` if it is
    /// not what is kept. It costs what is new, and waits until the disk has it. Where most of the file is no longer needed, the file is
    /// then replaced by a shorter one.
    ///
    /// # Errors
    /// [`SessionFileError`]: another engine, or what the system or the device reports. The last commit is then as it was, and saving can
    /// be tried again.
    pub async fn save(
        &mut self,
        session: &mut Session,
        data: &[u8],
    ) -> Result<(), SessionFileError> {
        self.save_from(session, data).await
    }

    /// [`save`](Self::save) of anything that has tokens and rows.
    pub(super) async fn save_from(
        &mut self,
        session: &mut impl Source,
        data: &[u8],
    ) -> Result<(), SessionFileError> {
        self.check_engine(session.engine())?;
        let most = Kind::Data.most_bytes(0) as usize;
        if data.len() > most {
            return Err(SessionFileError::DataTooLong {
                path: self.path.clone(),
                bytes: data.len(),
                most,
            });
        }
        self.cut_torn()?;
        let (tokens, rows) = self.common(session);
        let unchanged = tokens == self.kept.tokens.len()
            && tokens == session.tokens().len()
            && rows == self.kept.rows()
            && rows == session.cached()
            && data == self.kept.data
            && self.kept.journaled == 0;
        if unchanged && self.end > self.header {
            return Ok(());
        }
        self.torn = true;
        let appended = self.append(session, data, tokens, rows).await;
        let (changes, end) = match appended {
            Ok(appended) => appended,
            Err(error) => {
                // The reason of the failure is told; where cutting fails, too, it is tried again.
                let _ = self.cut_torn();
                return Err(error);
            }
        };
        self.kept.drop_journal();
        for change in changes {
            self.kept.apply(change);
        }
        (self.end, self.torn) = (end, false);
        self.lineage = Some(session.lineage().clone());
        self.differs =
            (self.kept.writers.iter()).find_map(|(_, then)| then.difference(&self.writer));
        if let Err(error) = self.shorten() {
            // All is saved; it is only longer than it need be.
            log::warn!("{error}");
        }
        Ok(())
    }

    /// The numbers of tokens and rows of the last commit that `session` still has, rows in whole records.
    fn common(&self, session: &impl Source) -> (usize, usize) {
        let pairs = self.kept.committed().iter().zip(session.tokens());
        let tokens = pairs.take_while(|(kept, said)| kept == said).count();
        let rows = self.lineage.as_ref().map_or(0, |lineage| {
            lineage.common(self.kept.rows(), session.lineage(), session.cached())
        });
        (tokens, self.kept.whole_rows(rows.min(tokens)))
    }

    /// Writes a group that follows `tokens` and `rows` of the last commit; returns its changes and where it ends.
    async fn append(
        &mut self,
        session: &mut impl Source,
        data: &[u8],
        tokens: usize,
        rows: usize,
    ) -> Result<(Vec<Change>, u64), SessionFileError> {
        let mut group = Group::begin(&self.path, "cannot write", &mut self.file, self.end)?;
        let kept = &self.kept;
        if tokens < kept.committed().len() || rows < kept.rows() {
            let counts = record::counts(tokens, rows);
            group.put(Kind::Forget, &counts, Change::Forget { tokens, rows })?;
        }
        let new = &session.tokens()[tokens..];
        if !new.is_empty() {
            let change = Change::Tokens(new.to_vec());
            group.put(Kind::Tokens, &record::tokens(new), change)?;
        }
        let cached = session.cached();
        let mut writers = kept.writers.iter().filter(|(first, _)| *first < rows);
        if rows < cached
            && writers
                .next_back()
                .is_none_or(|(_, last)| *last != self.writer)
        {
            group.put_writer(self.writer.clone())?;
        }
        let at_once = (record::PIECE / self.identity.row_bytes().max(1)).max(1) as usize;
        let mut first = rows;
        while first < cached {
            let end = cached.min(first + at_once);
            let bytes = session.read_rows(first..end).await?;
            let bytes = fitted(bytes, end - first, &self.identity);
            group.put_rows(first, end, &bytes, self.end)?;
            first = end;
        }
        if data != kept.data {
            group.put(Kind::Data, data, Change::Data(data.to_vec()))?;
        }
        group.commit(&record::counts(session.tokens().len(), cached))
    }

    /// Journals tokens of an answer while it is generated, without rows and without waiting for the disk. They follow those of the last
    /// [save](Self::save) and those journaled since; the next save replaces them.
    ///
    /// # Errors
    /// [`SessionFileError::Io`]. What was kept before is then as it was.
    pub fn journal(&mut self, tokens: &[u32]) -> Result<(), SessionFileError> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.cut_torn()?;
        let bytes = record::whole(self.end, Kind::Journal, &record::tokens(tokens));
        self.torn = true;
        let written = self.file.seek(SeekFrom::Start(self.end));
        let written = written.and_then(|_| self.file.write_all(&bytes));
        if let Err(error) = written {
            let _ = self.cut_torn();
            return Err(failed(&self.path, "cannot write")(error));
        }
        self.end += bytes.len() as u64;
        self.torn = false;
        self.kept.journal(tokens);
        Ok(())
    }

    /// Cuts off what a write left unfinished.
    fn cut_torn(&mut self) -> Result<(), SessionFileError> {
        if self.torn {
            let cut = match self.file.metadata() {
                Ok(metadata) if metadata.len() == self.end => Ok(()),
                Ok(_) => self.file.set_len(self.end),
                Err(error) => Err(error),
            };
            cut.map_err(failed(&self.path, "cannot cut"))?;
            self.torn = false;
        }
        Ok(())
    }

    fn check_engine(&self, engine: &Engine) -> Result<(), SessionFileError> {
        match *engine.identity()? == self.own {
            true => Ok(()),
            false => Err(SessionFileError::OtherEngine {
                path: self.path.clone(),
            }),
        }
    }
}

/// Rows of `count` positions with the layers of `identity`. They lie layer after layer, and the prediction layer is the last.
fn fitted(mut rows: Vec<u8>, count: usize, identity: &Identity) -> Vec<u8> {
    rows.resize(count * identity.row_bytes() as usize, 0);
    rows
}

/// A group of records while it is written.
struct Group<'a> {
    /// The session file that it is for. Errors name it.
    path: PathBuf,
    /// The action that errors name as failed, such as "cannot write".
    failing: &'static str,
    out: &'a mut File,
    at: u64,
    changes: Vec<Change>,
}

impl<'a> Group<'a> {
    /// A group that begins at `at` of `out`.
    fn begin(
        path: &Path,
        failing: &'static str,
        out: &'a mut File,
        at: u64,
    ) -> Result<Self, SessionFileError> {
        let sought = out.seek(SeekFrom::Start(at));
        sought.map_err(failed(path, failing))?;
        Ok(Self {
            path: path.to_owned(),
            failing,
            out,
            at,
            changes: vec![],
        })
    }

    /// Writes a record.
    fn write(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        self.out.write_all(&record::head(self.at, kind, length))?;
        self.out.write_all(payload)?;
        let sum = record::checksum(self.at, payload);
        self.out.write_all(&sum.to_le_bytes())?;
        self.at += AROUND + payload.len() as u64;
        Ok(())
    }

    /// Writes a record that makes a change.
    fn put(&mut self, kind: Kind, payload: &[u8], change: Change) -> Result<(), SessionFileError> {
        let written = self.write(kind, payload);
        written.map_err(failed(&self.path, self.failing))?;
        self.changes.push(change);
        Ok(())
    }

    fn put_writer(&mut self, writer: Writer) -> Result<(), SessionFileError> {
        let payload = serde_json::to_vec(&writer).map_err(io::Error::from);
        let payload = payload.map_err(failed(&self.path, self.failing))?;
        self.put(Kind::Writer, &payload, Change::Writer(writer))
    }

    /// Writes rows from `first` to `end`; what was saved before the group ends at `before`.
    fn put_rows(
        &mut self,
        first: usize,
        end: usize,
        rows: &[u8],
        before: u64,
    ) -> Result<(), SessionFileError> {
        let at = self.at;
        let payload = [&(first as u64).to_le_bytes()[..], rows].concat();
        let extent = Extent {
            first,
            end,
            at,
            before,
        };
        self.put(Kind::Rows, &payload, Change::Rows(extent))
    }

    /// Commits the group: what is in it is on the disk before the commit is, and the commit before this returns.
    fn commit(mut self, counts: &[u8]) -> Result<(Vec<Change>, u64), SessionFileError> {
        let synced = self.out.sync_data();
        let written = synced.and_then(|()| self.write(Kind::Commit, counts));
        let committed = written.and_then(|()| self.out.sync_data());
        committed.map_err(failed(&self.path, self.failing))?;
        Ok((self.changes, self.at))
    }
}
