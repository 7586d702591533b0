/** A certificate for a server on 127.0.0.1, valid for a day and signed by nobody else: it is its own authority. */
import { execFile } from 'node:child_process';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { onEnd, type Scope } from '../on-end.ts';

export interface Certificate {
  readonly caFile: string;
  readonly certFile: string;
  readonly keyFile: string;
}

/** Made by the command `openssl` for `names`; its files are gone when `t` ends. */
export async function makeCertificate(t: Scope, names = 'IP:127.0.0.1,DNS:localhost'): Promise<Certificate> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-certificate-'));
  onEnd(t, () => rm(folder, { recursive: true, force: true }));
  const [certFile, keyFile] = [path.join(folder, 'server.crt'), path.join(folder, 'server.key')];
  await promisify(execFile)('openssl', [
    ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1'],
    ...['-subj', '/CN=skrepka test', '-addext', `subjectAltName=${names}`],
    ...['-keyout', keyFile, '-out', certFile],
  ]);
  // Servers that run as another user read them as well.
  await Promise.all([chmod(folder, 0o755), chmod(keyFile, 0o644)]);
  return { caFile: certFile, certFile, keyFile };
}
