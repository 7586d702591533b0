/**
 * The scene of a journey: a database, a folder for objects and scratch, roles started on them with short times, and looks
 * at what is left in rows and on the disk.
 */
import assert from 'node:assert/strict';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Point } from '../../src/pipeline/ports.ts';
import type { Role } from '../../src/roles.ts';
import type { register } from './client.ts';
import { onEnd, type Scope } from './on-end.ts';
import { freshDatabase } from './postgres.ts';
import { type Action, type RoleOptions, type RoleProcess, shortTimes, startRole } from './role.ts';
import { until } from './until.ts';

/** Retries soon besides: these journeys fail on purpose. */
const quick = { ...shortTimes, RETRY_FLOOR: '50ms', RETRY_BASE: '50ms' };

export type User = Awaited<ReturnType<typeof register>>;

/** Everything that a journey needs; all of it is gone when `t` ends. `settings` come on top of the short times. */
export async function openJourney(t: Scope, settings: Readonly<Record<string, string>> = {}) {
  const dataDir = await mkdtemp(join(tmpdir(), 'skrepka-journey-'));
  onEnd(t, () => rm(dataDir, { recursive: true, force: true }));
  const { url: databaseUrl, pool } = await freshDatabase(t);

  const start = (
    roles: readonly Role[],
    points: Partial<Record<Point, Action>> = {},
    own: Pick<RoleOptions, 'settings' | 'renderScript' | 'build'> = {},
  ) =>
    startRole(t, { ...own, roles, databaseUrl, dataDir, settings: { ...quick, ...settings, ...own.settings }, points });
  const job = async (attachmentId: string) =>
    (await pool.query('select * from jobs where attachment_id = $1', [attachmentId])).rows[0];
  const count = async (table: 'attachments' | 'jobs' | 'variants' | 'cleanups' | 'messages') =>
    Number((await pool.query(`select count(*) as n from ${table}`)).rows[0].n);
  /** All but the mark of the folder. */
  const stored = async () => (await filesBelow(join(dataDir, 'blobs'))).filter((name) => name !== '.skrepka');

  /** Once quiet, the files in the storage are those that rows name: nothing lost, nothing left, nothing half written. */
  async function assertTidy(): Promise<void> {
    await until('the clean-ups are done', async () => (await count('cleanups')) === 0, { deadlineMs: 90_000 });
    const { rows } = await pool.query(`
      select key from variants
      union all
      select original_key from attachments where original_key is not null and deleted_at is null
      union all
      select staging_key from attachments where staging_gone_at is null and deleted_at is null
    `);
    assert.deepEqual(await stored(), rows.map((row) => row.key as string).sort());
  }
  return { dataDir, databaseUrl, pool, start, job, count, stored, assertTidy };
}

/** Paths of all files below a folder, relative to it, in order; none where there is no folder. */
export async function filesBelow(folder: string): Promise<string[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
    .sort();
}

/** What a process logged at the level `warn` or above. */
export function complaints(role: RoleProcess): string[] {
  return role
    .output()
    .split('\n')
    .filter((line) => /"level":"(?:warn|error|fatal)"/.test(line) || /^\s+at /.test(line));
}

/** Lets a process go on from a point at which it was told to wait, and not wait there again. */
export async function letGo(role: RoleProcess | null, point: Point): Promise<void> {
  await role?.disarm(point);
  await role?.resume(point);
}

/** Metadata, content and each variant of an attachment, as paths. */
export const pathsOf = (id: string) =>
  ['', '/content', '/variants/thumbnail', '/variants/crop', '/variants/optimized'].map(
    (end) => `/v1/attachments/${id}${end}`,
  );

/** What the paths answer to the user. */
export async function statusesOf(user: User, paths: readonly string[], headers: Record<string, string> = {}) {
  return Promise.all(
    paths.map(async (path) => {
      const response = await user.ask(path, { headers });
      await response.arrayBuffer();
      return response.status;
    }),
  );
}

/** A chat of the author with the reader in it. `send` puts an attachment into it and answers the id of the message. */
export async function openChat(author: User, reader: User) {
  const made = await author.json('/v1/chats', 'POST', { title: 'Family' });
  assert.equal(made.status, 201);
  const { id } = (await made.json()) as { id: string };
  const { id: readerId } = (await (await reader.ask('/v1/users/me')).json()) as { id: string };
  assert.equal((await author.ask(`/v1/chats/${id}/members/${readerId}`, { method: 'PUT' })).status, 204);
  return {
    async send(attachmentId: string): Promise<string> {
      const sent = await author.json(`/v1/chats/${id}/messages`, 'POST', { attachment_ids: [attachmentId] });
      assert.equal(sent.status, 201, await sent.clone().text());
      return ((await sent.json()) as { id: string }).id;
    },
  };
}
