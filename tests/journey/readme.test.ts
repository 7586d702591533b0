/** What the README tells a newcomer to paste works as it stands there, with nothing but bash and curl. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { freshDatabase } from '../support/postgres.ts';
import { startRole } from '../support/role.ts';

const root = resolve(import.meta.dirname, '../..');

/** The one block of the README that is pasted. */
async function walk(): Promise<string> {
  const blocks = [...(await readFile(join(root, 'README.md'), 'utf8')).matchAll(/^```bash\n([\s\S]*?)^```/gm)];
  assert.equal(blocks.length, 1);
  return blocks[0]?.[1] ?? '';
}

test('the walk of the README goes from registering to the thumbnail when pasted', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'skrepka-readme-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const { url: databaseUrl } = await freshDatabase(t);
  const server = await startRole(t, {
    roles: ['api', 'relay', 'worker', 'janitor'],
    databaseUrl,
    dataDir: join(folder, 'data'),
  });
  // Pasted lines go on after a failed one, so the script does as well: its output is what tells.
  const script = (await walk()).replaceAll('/tmp/', `${folder}/`);
  const { stdout, stderr } = await promisify(execFile)('bash', ['--norc', '-c', script], {
    cwd: root,
    env: { PATH: process.env.PATH, BASE_URL: server.url },
    timeout: 60_000,
  });
  assert.equal(stderr, '');
  assert.match(stdout, /^attachment [0-9a-f-]{36}$/m);
  assert.match(stdout, /^\{"id":"[0-9a-f-]{36}","state":"ready",/m);
  assert.match(stdout, /^the same bytes$/m);
  const { size } = await stat(join(folder, 'thumbnail.jpg'));
  assert.ok(size > 1_000 && size < 50_000, `a thumbnail of ${size} bytes`);
  const head = (await readFile(join(folder, 'thumbnail.jpg'))).subarray(0, 3);
  assert.deepEqual([...head], [0xff, 0xd8, 0xff]);
});
