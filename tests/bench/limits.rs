//! The limits of the machine itself, measured beside us: one append made durable, bytes over loopback, a write(2) to a
//! socket.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base::time::Stopwatch;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// Times of `n` appends of `n_bytes`, each made durable by fdatasync.
pub(crate) fn append_and_sync(dir: &Path, n_bytes: usize, n: usize) -> Result<Vec<Duration>> {
    let path = dir.join("append");
    let mut file = File::options().create(true).append(true).open(&path)?;
    let block = vec![b'x'; n_bytes];
    let mut times = Vec::with_capacity(n);
    for _ in 0..n {
        let clock = Stopwatch::start();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(clock.elapsed());
    }
    Ok(times)
}

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    Ok((near, far))
}

/// Times of `n` transfers of `n_bytes` over plain loopback TCP, from the first byte asked for to the last one read.
pub(crate) fn loopback(n_bytes: u64, n: usize) -> Result<Vec<Duration>> {
    let (mut near, mut far) = pair()?;
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let block = vec![b'x'; 64 << 10];
        let mut asked = [0];
        while far.read(&mut asked)? == 1 {
            let mut left = n_bytes;
            while left > 0 {
                let now = left.min(block.len() as u64);
                far.write_all(&block[..usize::try_from(now).unwrap_or(block.len())])?;
                left -= now;
            }
        }
        Ok(())
    });
    let mut buffer = vec![0; 64 << 10];
    let mut times = Vec::with_capacity(n);
    for _ in 0..n {
        let clock = Stopwatch::start();
        near.write_all(&[1])?;
        let mut left = n_bytes;
        while left > 0 {
            left -= near.read(&mut buffer)? as u64;
        }
        times.push(clock.elapsed());
    }
    drop(near);
    sender.join().ok().context("the sender panicked")??;
    Ok(times)
}

fn thread_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(u64::try_from(micros)?))
}

/// CPU time of one write(2) of `n_bytes` to a loopback socket: `rounds` over `n_sockets`, a thread reading at the other
/// ends.
pub(crate) fn write_cpu(n_bytes: usize, n_sockets: usize, rounds: usize) -> Result<Duration> {
    let pairs = (0..n_sockets).map(|_| pair()).collect::<Result<Vec<_>>>()?;
    let (mut near, mut far): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let block = vec![b'x'; n_bytes];
    let mut buffer = vec![0; 256 << 10];
    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        let before = thread_cpu()?;
        for socket in &mut near {
            socket.write_all(&block)?;
        }
        spent += thread_cpu()?.saturating_sub(before);
        for socket in &mut far {
            let mut left = n_bytes;
            while left > 0 {
                left -= socket.read(&mut buffer[..left.min(256 << 10)])?;
            }
        }
    }
    Ok(spent / u32::try_from(n_sockets * rounds)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_carries_every_byte_each_time() {
        assert_eq!(loopback(200_001, 3).unwrap().len(), 3);
        // Some kernels account a thread's time by ticks, and a tick may fall between the writes: more rounds meet one.
        let mut tries = (0..200).map(|_| write_cpu(60_000, 4, 500).unwrap());
        assert!(tries.any(|spent| spent > Duration::ZERO));
    }
}
