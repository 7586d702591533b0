/**
 * Names for what a process leaves on disk while it works, so that a later process can tell a dead owner's leavings from
 * a living one's. Several processes share one data folder, sometimes from several containers.
 *
 * A tag is `pid-start-space-boot`: the process id, its start time in clock ticks (process ids are reused), the pid
 * namespace (every container has a process 1) and the boot. Where `/proc` is missing, the last three are `0`.
 */
import { readFileSync, readlinkSync } from 'node:fs';

/** For owners of another namespace or machine, whose life cannot be seen from here: untouched for this long is abandoned. */
const foreignAgeMsMax = 60 * 60 * 1000;

const tagForm = /^([1-9][0-9]*)-([0-9]+)-([0-9]+)-([0-9a-f]+)$/;

let own: string | null = null;

/** This process's tag. Fit for a file name. */
export function processTag(): string {
  own ??= `${process.pid}-${started(process.pid)?.ticks ?? 0}-${scope()}`;
  return own;
}

/**
 * True when the process that made `tag` is certainly dead, or cannot be seen from here and has not touched its file
 * since `touchedAtMs` for more than an hour. What is no tag counts as foreign.
 */
export function isAbandoned(tag: string, touchedAtMs: number, nowMs: number): boolean {
  const [, pid, ticks, space, boot] = tagForm.exec(tag) ?? [];
  if (pid === undefined || `${space}-${boot}` !== scope()) return nowMs - touchedAtMs > foreignAgeMsMax;
  if (!exists(Number(pid))) return true;
  const now = started(Number(pid));
  // Alive, but unreadable (hidepid) or without /proc: rather keep a dead owner's file than remove a living one's.
  if (now === null) return false;
  return now.ended || now.ticks !== Number(ticks);
}

function scope(): string {
  try {
    const space = readlinkSync('/proc/self/ns/pid').replace(/\D/g, '');
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim().slice(0, 8);
    return `${space}-${boot}`;
  } catch {
    return '0-0';
  }
}

function exists(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Fields 3 (state) and 22 (start time) of proc_pid_stat(5), counted after the name, which may hold anything. */
function started(pid: number): { ticks: number; ended: boolean } | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { ticks: Number(fields[19]), ended: fields[0] === 'Z' || fields[0] === 'X' };
  } catch {
    return null;
  }
}
