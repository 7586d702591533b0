/**
 * Runs a program as somebody who is not root, because PostgreSQL refuses root.
 *
 * An ordinary user runs it as itself. Root runs it as the owner of the database folder, else as `postgres` or `nobody`.
 * Where that user cannot enter the folders above (a clone in /root), it gets the one capability of passing them
 * (`setpriv` of util-linux), and nothing else of root. Opening the folders' modes instead would open them for everybody.
 */
import { type ChildProcess, type SpawnOptions, spawn, spawnSync } from 'node:child_process';
import { readFile, stat } from 'node:fs/promises';
import path from 'node:path';
import { StartError } from '../errors.ts';

export interface Unprivileged {
  /** Null: as ourselves. Files for the program must belong to it. */
  readonly owner: { readonly uid: number; readonly gid: number } | null;
  spawn(program: string, args: readonly string[], options: SpawnOptions): ChildProcess;
}

interface Account {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
}

/**
 * Who shall run `program` on the folder `dir` (which need not exist yet). Rejects `StartError` when nobody can.
 */
export async function chooseUnprivileged(program: string, dir: string): Promise<Unprivileged> {
  if (process.getuid?.() !== 0) return { owner: null, spawn: (...call) => spawn(...call) };
  const account = await chooseAccount(dir);
  const { uid, gid } = account;
  const blocked = [program, path.dirname(dir)].find((place) => !canEnter(place, account));
  if (blocked === undefined) {
    return {
      owner: { uid, gid },
      spawn: (name, args, options) => spawn(name, args, { ...options, uid, gid }),
    };
  }
  const prefix = passingPrefix(program, account);
  if (prefix === null) throw new StartError(blockedSentence(blocked, account));
  return {
    owner: { uid, gid },
    spawn: (name, args, options) => spawn('setpriv', [...prefix, name, ...args], options),
  };
}

async function chooseAccount(dir: string): Promise<Account> {
  const accounts = await readAccounts();
  const folder = await stat(dir).catch(() => null);
  if (folder !== null && folder.uid !== 0) {
    const name = accounts.find((account) => account.uid === folder.uid)?.name ?? `number ${folder.uid}`;
    return { name, uid: folder.uid, gid: folder.gid };
  }
  const account = ['postgres', 'nobody']
    .map((name) => accounts.find((candidate) => candidate.name === name && candidate.uid !== 0))
    .find((candidate) => candidate !== undefined);
  if (account) return account;
  throw new StartError(
    'PostgreSQL refuses to run as root, and this system has neither a user "postgres" nor "nobody": run as another user, or set DATABASE_URL.',
  );
}

async function readAccounts(): Promise<Account[]> {
  const passwd = await readFile('/etc/passwd', 'utf8').catch(() => '');
  return passwd.split('\n').flatMap((line) => {
    const [name, , uid, gid] = line.split(':');
    return name && uid && gid ? [{ name, uid: Number(uid), gid: Number(gid) }] : [];
  });
}

function canEnter(place: string, { uid, gid }: Account): boolean {
  return spawnSync('/bin/sh', ['-c', 'test -x "$0"', place], { uid, gid, cwd: '/' }).status === 0;
}

/** The `setpriv` call that keeps one capability, or null where that is not possible. */
function passingPrefix(program: string, { uid, gid }: Account): string[] | null {
  // Containers often withhold the first and grant the second, which may also write; only then is it taken.
  for (const capability of ['dac_read_search', 'dac_override']) {
    const prefix = [
      // access(2) forgets the capabilities of everybody but root unless this is set; PostgreSQL asks it about itself.
      '--securebits=+no_setuid_fixup',
      `--reuid=${uid}`,
      `--regid=${gid}`,
      '--clear-groups',
      `--inh-caps=-all,+${capability}`,
      `--ambient-caps=-all,+${capability}`,
      `--bounding-set=-all,+${capability}`,
      '--no-new-privs',
    ];
    const probe = spawnSync('setpriv', [...prefix, program, '--version'], { cwd: '/', env: { LC_ALL: 'C' } });
    if (probe.status === 0) return prefix;
  }
  return null;
}

function blockedSentence(place: string, account: Account): string {
  const above: string[] = [];
  for (let at = path.resolve(place); ; at = path.dirname(at)) {
    above.unshift(at);
    if (at === path.dirname(at)) break;
  }
  const folder = above.find((candidate) => !canEnter(candidate, account)) ?? place;
  return `PostgreSQL refuses to run as root, and the user "${account.name}", as whom it would run, cannot enter ${folder}: move the project and DATA_DIR to a folder that everybody may enter, run as another user, or set DATABASE_URL.`;
}
