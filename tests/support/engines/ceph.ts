/**
 * A real S3 server for tests: one-node Ceph from Debian packages, with a folder that it keeps over kills and starts. The
 * work is done by `ceph-rgw.sh` beside this file.
 */
import { execFile, spawnSync } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { freePort } from '../../../scripts/free-port.ts';
import { onEnd, type Scope } from '../on-end.ts';

/** What a skipped suite says. */
export const installCommand = 'apt-get install --no-install-recommends radosgw ceph-mon ceph-osd';

/** Of the one user that the server has. */
export const keys = { s3AccessKeyId: 'AKSKREPKATEST', s3SecretAccessKey: 'SKSKREPKATESTSECRET' };

export interface CephServer {
  /** Of its gateway. It stays the same over all starts. */
  readonly url: string;
  /** Process id of the gateway. */
  pid(): Promise<number>;
  /** SIGKILL to the gateway alone: what clients talk to is gone, the disks stay. */
  killGateway(): Promise<void>;
  startGateway(): Promise<void>;
  /** SIGKILL to all of it. It keeps what it confirmed. */
  kill(): Promise<void>;
  /** Starts it again after a kill or a wipe. */
  start(): Promise<void>;
  /** Kills it and deletes its volume. */
  wipe(): Promise<void>;
  stop(): Promise<void>;
}

export function available(): boolean {
  return ['radosgw', 'ceph-mon', 'ceph-osd'].every(
    (program) => spawnSync(program, ['--version'], { stdio: 'ignore' }).status === 0,
  );
}

/** A server on a free port of 127.0.0.1, in about 20 s; it and its folder are gone when `t` ends, or this process does. */
export async function startCeph(t: Scope): Promise<CephServer> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-ceph-'));
  const port = await freePort();
  const tell = async (verb: string) => {
    const words = [path.join(import.meta.dirname, 'ceph-rgw.sh'), verb, folder, String(port), String(process.pid)];
    await promisify(execFile)('bash', words, { timeout: 120_000 });
  };
  const gatewayId = async () => Number(await readFile(path.join(folder, 'run', 'rgw.pid'), 'utf8'));
  const kill = () => tell('kill');
  const wipe = async () => {
    await kill();
    await rm(folder, { recursive: true, force: true });
  };
  onEnd(t, wipe);
  await tell('start');
  return {
    url: `http://127.0.0.1:${port}`,
    pid: gatewayId,
    async killGateway() {
      process.kill(await gatewayId(), 'SIGKILL');
    },
    startGateway: () => tell('gateway'),
    kill,
    start: () => tell('start'),
    wipe,
    stop: kill,
  };
}
