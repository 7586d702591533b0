/**
 * Free ports of loopback for servers that have to be told theirs, or that are started again on the same one.
 *
 * They lie below those that the kernel gives away by itself: between the look and the start, or while a server is down, one of those
 * could become the port of somebody else's server, or of the near end of somebody's connection. (Where somebody lets the kernel's begin
 * so low that hardly any are left below, they are among them.)
 */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:net';

const least = 10_000;
/** What Linux ships with; told in `/proc` where somebody changed it. */
const usualFirstOfKernel = 32_768;

const given = new Set<number>();

export async function freePort(): Promise<number> {
  const below = await firstOfKernel();
  for (;;) {
    const port = randomInt(least, below);
    if (given.has(port)) continue;
    given.add(port);
    if (await isFree(port)) return port;
  }
}

/** All of them different. */
export async function freePorts(count: number): Promise<readonly number[]> {
  return await Promise.all(Array.from({ length: count }, freePort));
}

async function firstOfKernel(): Promise<number> {
  const range = await readFile('/proc/sys/net/ipv4/ip_local_port_range', 'utf8').catch(() => '');
  const first = Number(/^\d+/.exec(range)?.[0] ?? usualFirstOfKernel);
  return first > least + 1000 ? first : usualFirstOfKernel;
}

async function isFree(port: number): Promise<boolean> {
  const holder = createServer().listen(port, '127.0.0.1');
  try {
    await once(holder, 'listening');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EADDRINUSE') return false;
    throw error;
  }
  holder.close();
  await once(holder, 'close');
  return true;
}
