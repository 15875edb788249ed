//! The last-known file: what views showed, for a process that starts while no server answers.
//!
//! One line says what it is, `cosky-remembered 1 CRC BYTES`, and a JSON document of that many bytes and that CRC-32
//! follows. A file that is not whole is not read, and one that is not ours is neither read nor written over.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cosky_cache::{Recall, WeakCache};
use cosky_core::{
    Clock as _, Namespace, ServiceId, ServiceInstance, SystemClock, digest,
    wire::{self, InstanceBody},
};
use serde::Deserialize;
use tokio::task::spawn_blocking;

/// The first word of the file, and the version of what follows.
const MAGIC: &str = "cosky-remembered";
const VERSION: u32 = 1;
/// The most bytes of the file.
const FILE_BYTES: usize = 16 * 1024 * 1024;
/// The most bytes of its first line.
const LINE_BYTES: usize = 64;
/// The most services that are remembered.
const SERVICES: usize = 10_000;
/// Something that has not been live for longer is told to be as old as this.
const OLDEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// How long after a change it is in the file, at most, and so how often the file is written.
const EVERY: Duration = Duration::from_secs(1);
/// How often the file is written though nothing changed, so that it tells how long it has been true.
const REFRESH: Duration = Duration::from_secs(60);
/// A pause between two looks at the cache that says that this process or machine stood still.
const STOOD_STILL: Duration = Duration::from_secs(4);
/// A file that was begun so long ago is not written any more.
const LEFT_BEHIND: Duration = Duration::from_secs(60);

/// What was known when something was last known, and the file that keeps it.
pub(crate) struct Memory {
    path: PathBuf,
    /// Whether what stands at the path may be replaced.
    ours: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    services: BTreeMap<(Namespace, ServiceId), Known>,
    /// A list is not in the file yet.
    changed: bool,
    /// A list of the file is known to be true for longer than the file says.
    renewed: bool,
    /// When the file was last written, by the wall clock.
    written_at: u64,
    /// Failed writes in a row.
    failures: u32,
    /// It was told that not everything fits.
    told_full: bool,
}

/// One service.
#[derive(Clone)]
struct Known {
    instances: Arc<[ServiceInstance]>,
    /// When it was last live, in milliseconds since 1970.
    live_at: u64,
}

/// What is known of a service now.
struct Seen {
    namespace: Namespace,
    service: ServiceId,
    instances: Arc<[ServiceInstance]>,
    /// Zero while it is live.
    age: Duration,
}

/// Why a file is not read.
enum Unread {
    /// There is none.
    Absent,
    /// Not ours.
    Foreign,
    /// It cannot be read, or what is in it cannot.
    Bad(String),
}

/// One service in the file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    namespace: String,
    service: String,
    live_at: u64,
    instances: Vec<InstanceBody>,
}

impl Memory {
    /// Reads what a process before this one knew. A file that cannot be read costs a warning and no more.
    pub(crate) async fn open(path: PathBuf) -> Arc<Self> {
        let opened = spawn_blocking(|| Self::read(path)).await;
        Arc::new(opened.expect("reading a file does not panic, and nobody ends it"))
    }

    /// As [`Memory::open`]; blocks.
    fn read(path: PathBuf) -> Self {
        let mut memory = Self { path, ours: true, state: Mutex::default() };
        match read_file(&memory.path) {
            Ok(services) => memory.lock().services = services,
            Err(Unread::Absent) => {}
            Err(Unread::Foreign) => {
                memory.ours = false;
                tracing::warn!(path = %memory.path.display(), "not a file of remembered services; it is left alone and nothing is remembered");
            }
            Err(Unread::Bad(reason)) => {
                tracing::warn!(path = %memory.path.display(), "remembered services are ignored: {reason}");
            }
        }
        if memory.ours
            && let Err(error) = sweep(&memory.path)
        {
            tracing::debug!(path = %memory.path.display(), %error, "files that were not finished stay");
        }
        memory
    }

    /// Whether anything is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().services.is_empty()
    }

    /// What was last known of a service, and how old that is.
    fn recall(
        &self,
        namespace: &Namespace,
        service: &ServiceId,
    ) -> Option<(Arc<[ServiceInstance]>, Duration)> {
        let state = self.lock();
        let known = state.services.get(&(namespace.clone(), service.clone()))?;
        // A wall clock that was set back makes nothing younger than it is live.
        let age = Duration::from_millis(unix_ms().saturating_sub(known.live_at)).min(OLDEST);
        Some((known.instances.clone(), age))
    }

    /// Takes in what is known now. What is not known any more stays as it was.
    fn note(&self, seen: impl IntoIterator<Item = Seen>) {
        let (now, mut state) = (unix_ms(), self.lock());
        let state = &mut *state;
        for Seen { namespace, service, instances, age } in seen {
            let live_at = now.saturating_sub(wire::millis(age));
            let key = (namespace, service);
            match state.services.get_mut(&key) {
                Some(known) if same(&known.instances, &instances) => {
                    // While it is not live it stays as old as it is, whatever the wall clock does.
                    if age.is_zero() {
                        known.live_at = now;
                        state.renewed = true;
                    }
                }
                _ => {
                    state.services.insert(key, Known { instances, live_at });
                    state.changed = true;
                }
            }
        }
        state.forget_down_to(SERVICES);
    }

    /// Writes the file when it is time to. Blocks. A failure is told once, and tried again with the next call.
    fn save(&self) {
        let now = unix_ms();
        let (services, told_full) = {
            let mut state = self.lock();
            let refresh = now.abs_diff(state.written_at) >= wire::millis(REFRESH);
            if !self.ours || !(state.changed || state.renewed && refresh) {
                return;
            }
            (state.changed, state.renewed) = (false, false);
            state.written_at = now;
            // Those who ask what was known must not wait for the rest.
            (state.services.clone(), state.told_full)
        };
        let (bytes, left_out) = encode(&services, FILE_BYTES);
        if left_out > 0 && !told_full {
            tracing::warn!(
                services = left_out,
                "not all services fit into {FILE_BYTES} bytes; the oldest are not remembered"
            );
        }
        let written = write(&self.path, &bytes);
        let mut state = self.lock();
        state.told_full |= left_out > 0;
        match written {
            Ok(()) if state.failures > 0 => {
                tracing::info!(path = %self.path.display(), failures = state.failures, "services are remembered again");
                state.failures = 0;
            }
            Ok(()) => {}
            Err(error) => {
                if state.failures == 0 {
                    tracing::warn!(path = %self.path.display(), %error, "services cannot be remembered; trying on");
                }
                state.failures = state.failures.saturating_add(1);
                state.changed = true;
            }
        }
    }

    /// What a cache asks.
    pub(crate) fn recalls(self: &Arc<Self>) -> Recall {
        let memory = self.clone();
        Arc::new(move |namespace, service, why| {
            // Somebody else than a cosky server, or one that is too old, is no outage.
            let outage = crate::Error::from(why.clone()).is_unavailable();
            outage.then(|| memory.recall(namespace, service)).flatten()
        })
    }

    /// Keeps the file up to date with what `cache` knows, until that is gone.
    pub(crate) async fn keep(self: Arc<Self>, cache: WeakCache) {
        loop {
            let before = SystemClock.now();
            tokio::time::sleep(EVERY).await;
            let Some(cache) = cache.upgrade() else { return };
            if SystemClock.now() - before > STOOD_STILL {
                // What looks live is not known to be: the cache is about to notice.
                continue;
            }
            let memory = self.clone();
            let saving = spawn_blocking(move || {
                memory.note(cache.all().into_iter().map(|(namespace, service, shown)| {
                    let (instances, age) = (shown.instances.clone(), shown.age());
                    Seen { namespace, service, instances, age }
                }));
                memory.save();
            });
            if let Err(error) = saving.await {
                tracing::error!(%error, "services are not remembered any more");
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether both say the same of the same instances. How long these live is not what is remembered.
fn same(a: &Arc<[ServiceInstance]>, b: &Arc<[ServiceInstance]>) -> bool {
    let alike = |(a, b): (&ServiceInstance, &ServiceInstance)| {
        a.id() == b.id() && digest::of_instance(a) == digest::of_instance(b)
    };
    Arc::ptr_eq(a, b) || a.len() == b.len() && a.iter().zip(&**b).all(alike)
}

impl State {
    /// Forgets what has not been live for longest, so that there is room for what comes.
    fn forget_down_to(&mut self, limit: usize) {
        let Some(over) = self.services.len().checked_sub(limit).filter(|over| *over > 0) else { return };
        let mut oldest: Vec<_> =
            self.services.iter().map(|(key, known)| (known.live_at, key.clone())).collect();
        oldest.sort();
        for (_, key) in oldest.into_iter().take(over) {
            self.services.remove(&key);
        }
    }
}

/// The whole file. What has not been live for longest is left out when not everything fits; so many services are.
fn encode(services: &BTreeMap<(Namespace, ServiceId), Known>, limit: usize) -> (Vec<u8>, usize) {
    let mut newest: Vec<_> = services.iter().collect();
    newest.sort_by_key(|(_, known)| std::cmp::Reverse(known.live_at));
    let mut body = String::from("[");
    let mut left_out = 0;
    for (key, known) in newest {
        let entry = format!(
            r#"{{"namespace":{},"service":{},"liveAt":{},"instances":{}}}"#,
            serde_json::Value::from(key.0.as_str()),
            serde_json::Value::from(key.1.as_str()),
            known.live_at,
            wire::instances(&known.instances)
        );
        if LINE_BYTES + body.len() + entry.len() + 2 > limit {
            left_out += 1;
            continue;
        }
        if body.len() > 1 {
            body.push(',');
        }
        body.push_str(&entry);
    }
    body.push(']');
    let mut file = format!("{MAGIC} {VERSION} {:08x} {}\n", crc32fast::hash(body.as_bytes()), body.len());
    file.push_str(&body);
    (file.into_bytes(), left_out)
}

/// What is in the file.
fn read_file(path: &Path) -> Result<BTreeMap<(Namespace, ServiceId), Known>, Unread> {
    let bad = |error: io::Error| Unread::Bad(error.to_string());
    let file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Unread::Absent,
        _ => bad(error),
    })?;
    if !file.metadata().map_err(bad)?.is_file() {
        return Err(Unread::Foreign);
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(bad)?;
    if !bytes.is_empty() && !bytes.starts_with(MAGIC.as_bytes()) {
        return Err(Unread::Foreign);
    }
    if bytes.len() > FILE_BYTES {
        return Err(Unread::Bad(format!("the file is larger than {FILE_BYTES} bytes")));
    }
    decode(&bytes).map_err(Unread::Bad)
}

fn decode(bytes: &[u8]) -> Result<BTreeMap<(Namespace, ServiceId), Known>, String> {
    let line = bytes.iter().take(LINE_BYTES).position(|byte| *byte == b'\n').ok_or("it has no first line")?;
    let (line, body) =
        (std::str::from_utf8(&bytes[..line]).map_err(|error| error.to_string())?, &bytes[line + 1..]);
    let mut words = line.split(' ').skip(1);
    let version = words.next().unwrap_or_default();
    if version != VERSION.to_string() {
        return Err(format!("it is of version {version:?}, and version {VERSION} is read here"));
    }
    let sum = format!("{:08x} {}", crc32fast::hash(body), body.len());
    if words.collect::<Vec<_>>().join(" ") != sum {
        return Err("it is damaged: its checksum does not fit".into());
    }
    let entries: Vec<Entry> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let known = |entry: Entry| {
        let key = (Namespace::new(&entry.namespace).ok()?, ServiceId::new(&entry.service).ok()?);
        // Whether a life is over is for the registry to say.
        let life = Some(Duration::from_millis(1));
        let mut instances: Vec<_> =
            entry.instances.into_iter().filter_map(|body| body.read(life).ok()).collect();
        instances.sort_by(|a, b| a.id().cmp(b.id()));
        Some((key, Known { instances: instances.into(), live_at: entry.live_at }))
    };
    Ok(entries.into_iter().filter_map(known).collect())
}

/// Replaces the file whole: there is the old one or the new one, whatever happens.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name =
        path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the path names no file"))?;
    let next = path.with_file_name(format!("{}{}", hidden(name), std::process::id()));
    let written = fill(&next, bytes).and_then(|()| std::fs::rename(&next, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&next);
        return written;
    }
    File::open(directory(path))?.sync_all()
}

/// How the names of files begin that are to replace `name`; the number of the process that writes one follows.
fn hidden(name: &OsStr) -> String {
    format!(".{}.", name.to_string_lossy())
}

/// Takes away what processes have left that were killed while they wrote. Nobody writes for long.
fn sweep(path: &Path) -> io::Result<()> {
    let begin = hidden(path.file_name().unwrap_or_default());
    for file in std::fs::read_dir(directory(path))? {
        let file = file?;
        let name = file.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&begin));
        let ours = number.is_some_and(|number| number.parse::<u32>().is_ok());
        let age =
            || file.metadata().and_then(|data| data.modified()).map(|at| at.elapsed().unwrap_or_default());
        if ours && age()? >= LEFT_BEHIND {
            std::fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn fill(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // One that is left of a process with this id before this one.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, wire::millis)
}

#[cfg(test)]
mod tests {
    use cosky_core::{Instance, Life, Registration};

    use super::*;

    fn list(ports: &[i64]) -> Arc<[ServiceInstance]> {
        let one = |port: &i64| {
            let new = Registration::new(ServiceId::new("stock").unwrap(), "http", "10.0.0.5", *port).unwrap();
            let life = Life::Remaining { remaining: Duration::from_secs(30), ttl_at: 1_790_000_030 };
            ServiceInstance::new(Arc::new(Instance::from(new)), life)
        };
        ports.iter().map(one).collect()
    }

    fn key() -> (Namespace, ServiceId) {
        (Namespace::new("shop-{eu}").unwrap(), ServiceId::new("stock").unwrap())
    }

    fn seen(service: &str, instances: &Arc<[ServiceInstance]>, age: u64) -> [Seen; 1] {
        let (namespace, service) = (key().0, ServiceId::new(service).unwrap());
        [Seen { namespace, service, instances: instances.clone(), age: Duration::from_secs(age) }]
    }

    fn ports(memory: &Memory) -> Option<Vec<u32>> {
        let (namespace, service) = key();
        let recalled = memory.recall(&namespace, &service);
        recalled.map(|(list, _)| list.iter().map(|instance| instance.port().get()).collect())
    }

    fn age(memory: &Memory) -> u64 {
        let (namespace, service) = key();
        memory.recall(&namespace, &service).unwrap().1.as_secs()
    }

    /// A file that knows ports 1 and 2, live 100 s ago.
    fn saved() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known");
        let memory = Memory::read(path.clone());
        memory.note(seen("stock", &list(&[1, 2]), 100));
        memory.save();
        (dir, path)
    }

    #[test]
    fn what_was_known_is_known_to_the_next_process_with_its_age() {
        let (dir, path) = saved();
        let memory = Memory::read(path.clone());
        assert_eq!((ports(&memory), age(&memory)), (Some(vec![1, 2]), 100));
        let (namespace, other) = (key().0, ServiceId::new("order").unwrap());
        assert!(memory.recall(&namespace, &other).is_none());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_service_that_nobody_asked_for_this_time_stays_known() {
        let (_dir, path) = saved();
        let memory = Memory::read(path.clone());
        memory.note(seen("order", &list(&[7]), 0));
        memory.save();
        let memory = Memory::read(path);
        assert_eq!((ports(&memory), age(&memory)), (Some(vec![1, 2]), 100));
    }

    #[test]
    fn the_age_is_that_of_the_list_and_not_of_the_file() {
        let (_dir, path) = saved();
        let memory = Memory::read(path.clone());
        let (namespace, service) = key();
        let (list_of_file, age_of_file) = memory.recall(&namespace, &service).unwrap();
        // It is shown from the file, and seen there.
        memory.note(seen("stock", &list_of_file, age_of_file.as_secs()));
        assert!(!memory.lock().changed && age(&memory) == 100);
        // The same list from a server: it is live now.
        memory.note(seen("stock", &list(&[1, 2]), 0));
        assert!(!memory.lock().changed && memory.lock().renewed && age(&memory) == 0);
        memory.save();
        assert_eq!(age(&Memory::read(path)), 0);
    }

    #[test]
    fn a_clock_that_was_set_back_makes_nothing_younger_than_live() {
        let (_dir, path) = saved();
        let memory = Memory::read(path);
        memory.lock().services.get_mut(&key()).unwrap().live_at = unix_ms() + 3_600_000;
        assert_eq!(age(&memory), 0);
        memory.lock().services.get_mut(&key()).unwrap().live_at = 0;
        assert_eq!(age(&memory), OLDEST.as_secs());
    }

    #[test]
    fn a_damaged_file_is_ignored_and_written_anew() {
        let (_dir, path) = saved();
        let good = std::fs::read(&path).unwrap();
        let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|end| good[..end].to_vec()).collect();
        cases.extend((MAGIC.len()..good.len()).map(|at| {
            let mut bad = good.clone();
            bad[at] ^= 1;
            bad
        }));
        cases.push([&good[..], b"x"].concat());
        let text = String::from_utf8(good.clone()).unwrap();
        cases.push(text.replacen("remembered 1", "remembered 2", 1).into_bytes());
        for bad in cases {
            assert!(decode(&bad).is_err(), "{}", String::from_utf8_lossy(&bad));
        }
        std::fs::write(&path, &good[..good.len() - 1]).unwrap();
        let memory = Memory::read(path.clone());
        assert!(memory.is_empty());
        memory.save();
        assert_eq!(
            std::fs::read(&path).unwrap().len(),
            good.len() - 1,
            "nothing is known, nothing is written"
        );
        memory.note(seen("stock", &list(&[3]), 0));
        memory.save();
        assert_eq!(ports(&Memory::read(path)), Some(vec![3]));
    }

    #[test]
    fn a_file_of_somebody_else_is_neither_read_nor_written_over() {
        let (_dir, path) = saved();
        for foreign in ["root:x:0:0::/root:/bin/sh\n", "cosky", &"x".repeat(FILE_BYTES + 1)] {
            std::fs::write(&path, foreign).unwrap();
            let memory = Memory::read(path.clone());
            memory.note(seen("stock", &list(&[3]), 0));
            memory.save();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), foreign);
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let (_dir, path) = saved();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(FILE_BYTES as u64 + 1).unwrap();
        assert!(Memory::read(path).is_empty());
    }

    #[test]
    fn what_does_not_fit_is_left_out_the_oldest_first() {
        let mut state = State::default();
        for (service, live_at) in [("a", 3), ("b", 1), ("c", 2)] {
            let known = Known { instances: list(&[1]), live_at };
            state.services.insert((key().0, ServiceId::new(service).unwrap()), known);
        }
        let (whole, left_out) = encode(&state.services, FILE_BYTES);
        assert_eq!(left_out, 0);
        let whole = whole.len();
        let (part, left_out) = encode(&state.services, whole - 1 + LINE_BYTES / 2);
        assert_eq!(left_out, 1);
        assert!(part.len() < whole && part.len() <= whole - 1 + LINE_BYTES / 2);
        let names: Vec<_> =
            decode(&part).unwrap().into_keys().map(|(_, service)| service.to_string()).collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn the_services_that_are_remembered_are_bounded_the_newest_stay() {
        let mut state = State::default();
        for (service, live_at) in [("a", 3), ("b", 1), ("c", 2)] {
            let known = Known { instances: list(&[1]), live_at };
            state.services.insert((key().0, ServiceId::new(service).unwrap()), known);
        }
        state.forget_down_to(3);
        assert_eq!(state.services.len(), 3);
        state.forget_down_to(1);
        assert_eq!(state.services.keys().next().unwrap().1.as_str(), "a");
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::read(dir.path().join("known"));
        memory.note((0..SERVICES + 3).flat_map(|many| seen(&format!("s{many}"), &list(&[]), 1)));
        assert_eq!(memory.lock().services.len(), SERVICES);
    }

    #[test]
    fn what_killed_processes_left_half_written_is_taken_away_and_nothing_else() {
        let (dir, path) = saved();
        let old = SystemTime::now() - 2 * LEFT_BEHIND;
        for (name, modified) in
            [(".known.123", old), (".known.124", SystemTime::now()), (".known.swp", old), (".other.123", old)]
        {
            File::create(dir.path().join(name)).unwrap().set_modified(modified).unwrap();
        }
        Memory::read(path);
        let mut left: Vec<_> = dir
            .path()
            .read_dir()
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".known.124", ".known.swp", ".other.123", "known"]);
    }

    #[test]
    fn a_failing_write_leaves_the_old_file_and_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not there yet").join("known");
        let memory = Memory::read(path.clone());
        memory.note(seen("stock", &list(&[1]), 0));
        memory.save();
        memory.save();
        assert_eq!(memory.lock().failures, 2);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        memory.save();
        assert_eq!((memory.lock().failures, ports(&Memory::read(path))), (0, Some(vec![1])));
    }
}
