/**
 * What the configuration of a Valkey means for messages that it confirmed: whether a crash, or a full memory, may lose them.
 *
 * Losing them is allowed, they are only rings of bells that PostgreSQL keeps, so nothing here refuses to start; but whoever
 * runs it should know.
 */
import { describe } from '../errors.ts';
import type { Log } from '../pipeline/ports.ts';
import type { Line, Reply } from './broker-valkey-connection.ts';

/** Warns in the log, with one sentence for each finding. Never rejects. */
export async function checkDurability(line: Line, log: Pick<Log, 'warn'>): Promise<void> {
  const settings = new Map<string, string>();
  for (const setting of ['appendonly', 'appendfsync', 'maxmemory-policy']) {
    try {
      const [, value] = list(await line.send(['config', 'get', setting]));
      if (Buffer.isBuffer(value)) settings.set(setting, value.toString());
    } catch (error) {
      return await checkInfo(line, log, error);
    }
  }
  const appendOnly = settings.get('appendonly');
  if (appendOnly !== 'yes') log.warn({ appendOnly }, `broker: ${lossy} (appendonly is not "yes")`);
  const appendFsync = settings.get('appendfsync');
  if (appendOnly === 'yes' && appendFsync !== 'always') {
    log.warn({ appendFsync }, `broker: ${lossy} (appendfsync is not "always")`);
  }
  warnOfEviction(settings.get('maxmemory-policy'), log);
}

/** Where CONFIG is forbidden, as by most who rent servers out, INFO tells a part of it. */
async function checkInfo(line: Line, log: Pick<Log, 'warn'>, why: unknown): Promise<void> {
  try {
    const found = new Map<string, string>();
    for (const section of ['persistence', 'memory']) {
      for (const [, field = '', value = ''] of String(await line.send(['info', section])).matchAll(
        /^(\w+):(.*?)\r?$/gm,
      )) {
        found.set(field, value);
      }
    }
    if (found.get('aof_enabled') === '1') {
      log.warn({ reason: describe(why) }, `broker: whether ${lossy} is not known (appendfsync may not be read)`);
    } else {
      log.warn({}, `broker: ${lossy} (the append-only file is off)`);
    }
    warnOfEviction(found.get('maxmemory_policy'), log);
  } catch (error) {
    log.warn(
      { reason: describe(error) },
      `broker: whether ${lossy} is not known (neither CONFIG nor INFO may be read)`,
    );
  }
}

const lossy = 'a crash of Valkey may lose messages that it has confirmed';

function warnOfEviction(policy: string | undefined, log: Pick<Log, 'warn'>): void {
  if (policy === undefined || policy === 'noeviction') return;
  log.warn({ policy }, 'broker: a full Valkey may evict the stream (maxmemory-policy is not "noeviction")');
}

const list = (reply: Reply): readonly Reply[] => (Array.isArray(reply) ? reply : []);
