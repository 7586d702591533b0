/**
 * The processes of a storm: real roles, each with lines of its own to the engines and, for an API, to its clients. They are
 * killed, stopped and started again one by one; whoever ends without having been told to is remembered.
 */
import type { Point } from '../../../src/pipeline/ports.ts';
import type { Role } from '../../../src/roles.ts';
import type { Scope } from '../on-end.ts';
import { type RoleProcess, startRole } from '../role.ts';
import { startTcpProxy, type TcpProxy } from '../tcp-proxy.ts';
import { lasts } from './lasts.ts';

export type Dependency = 'database' | 'broker' | 'storage';
/** `null`: that engine is reached by no line of its own. */
export type Servers = { readonly [D in Dependency]: string | null } & { readonly database: string };

/** Two APIs, relays, janitors and workers: one of each is always left, and two are always at odds. */
const crewRoles = {
  api: ['api'],
  'api 2': ['api'],
  relay: ['relay'],
  janitor: ['janitor'],
  worker: ['worker'],
  'worker 2': ['worker', 'relay', 'janitor'],
} as const satisfies Record<string, readonly Role[]>;

export type Member = keyof typeof crewRoles;
export const members = Object.keys(crewRoles) as Member[];

/** Short times in the same relations as the defaults, and longer than a busy machine takes for a photograph. */
export const stormTimes = {
  LEASE: '9s',
  RENEW: '2s',
  LEASE_RESERVE: '1s',
  LEASE_MARGIN: '50ms',
  RENDER_TIMEOUT: '8s',
  BROKER_REDELIVERY: '10s',
  RING_RETRY: '2s',
  PUBLISH_TIMEOUT: '1s',
  RERING: '1s',
  RERING_CAP: '10s',
  STARVED: '1s',
  RETRY_FLOOR: '50ms',
  RETRY_BASE: '50ms',
  RETRY_CAP: '1s',
  RELEASE_DELAY: '500ms',
  BREAKER_FLOOR: '100ms',
  BREAKER_CAP: '1s',
  CLEANUP_GRACE: '9s',
  JANITOR_INTERVAL: '200ms',
  SWEEP_INTERVAL: '500ms',
  DEEP_SWEEP_INTERVAL: '1s',
  MAX_UPLOAD_TIME: '7s',
  ORPHAN_AGE: '8s',
  IDEMPOTENCY_LEASE: '2s',
  S3_TIMEOUT: '4s',
  // Whoever is struck often is no bad picture.
  MAX_ATTEMPTS: '100',
  MAX_CRASHES: '100',
  LOG_LEVEL: 'info',
} as const;
/** Longer than a lease, and than the age at which a staging object without a row is deleted. */
export const longStopMs = 10_500;
const pointMs = 5_000;

export interface Crew {
  /** Where clients find an API that runs; its line may be bad. */
  base(random: () => number): string;
  line(member: Member, dependency: Dependency): TcpProxy | null;
  front(member: 'api' | 'api 2'): TcpProxy;
  /** SIGKILL, at the named point if it is reached soon, and a new process. */
  kill(member: Member, point: Point | null): Promise<void>;
  /** Does `act` while the process stands at the point, and lets it go on; false when the point is not reached soon. */
  whileAt(member: Member, point: Point, act: () => void | Promise<void>): Promise<boolean>;
  /** SIGSTOP for so long, then SIGCONT; at the named point, or not at all when it is not reached soon. */
  stop(member: Member, ms: number, point: Point | null): Promise<boolean>;
  /** Runs what strikes a member when nothing else does. */
  alone<T>(member: Member, strike: () => Promise<T>): Promise<T>;
  isBusy(member: Member): boolean;
  /** Who ended by itself, with what it said last. */
  readonly deaths: string[];
  output(): string;
}

interface Station {
  readonly lines: Readonly<Record<Dependency, TcpProxy | null>>;
  process: RoleProcess;
  front: TcpProxy | null;
}

export interface CrewOptions {
  readonly servers: Servers;
  /** Settings of a process whose engines are at these URLs. */
  environment(urls: Servers): Readonly<Record<string, string>>;
  readonly dataDir: string;
}

export async function openCrew(t: Scope, options: CrewOptions): Promise<Crew> {
  const deaths: string[] = [];
  const ending = new WeakSet<RoleProcess>();
  const locks = new Map<Member, Promise<unknown>>();
  const past: string[] = [];

  const openLine = (url: string | null) => (url === null ? null : startTcpProxy(t, url));
  async function start(member: Member, lines: Station['lines']): Promise<RoleProcess> {
    const urls = {
      database: lines.database?.url ?? options.servers.database,
      broker: lines.broker?.url ?? null,
      storage: lines.storage?.url ?? null,
    };
    const settings = { ...stormTimes, ...options.environment(urls) };
    const roles = crewRoles[member];
    const started = await startRole(t, { roles, databaseUrl: urls.database, dataDir: options.dataDir, settings });
    void started.ended.then(({ code, signal }) => {
      if (!ending.has(started)) deaths.push(`${member} ended with ${code ?? signal}: ${started.output().slice(-3000)}`);
    });
    return started;
  }
  const frontOf = (process: RoleProcess) => (process.url === '' ? null : startTcpProxy(t, process.url));
  async function openStation(member: Member): Promise<[Member, Station]> {
    const { database, broker, storage } = options.servers;
    const lines = {
      database: await openLine(database),
      broker: await openLine(broker),
      storage: await openLine(storage),
    };
    const process = await start(member, lines);
    return [member, { lines, process, front: await frontOf(process) }];
  }
  const stations = new Map(await Promise.all(members.map(openStation)));
  const at = (member: Member) => stations.get(member) as Station;

  async function kill(member: Member, point: Point | null): Promise<void> {
    const station = at(member);
    const { process } = station;
    ending.add(process);
    if (point !== null) {
      void process.arm(point, 'kill').catch(() => undefined);
      await Promise.race([process.ended, lasts(pointMs)]);
    }
    await process.kill();
    station.front?.cutAll();
    past.push(`--- ${member}\n${process.output()}`);
    station.process = await start(member, station.lines);
    station.front = await frontOf(station.process);
  }

  /** One who waited in vain is first in line when the point is reached after all: it is asked again instead. */
  const asked = new Map<string, Promise<boolean>>();
  function nextAt(role: RoleProcess, point: Point): Promise<boolean> {
    const name = `${role.pid} ${point}`;
    const known = asked.get(name);
    if (known) return known;
    const reached = role.reached(point).then(
      () => asked.delete(name),
      () => false,
    );
    asked.set(name, reached);
    return reached;
  }

  async function whileAt(member: Member, point: Point, act: () => void | Promise<void>): Promise<boolean> {
    const { process: role } = at(member);
    const gone = role.ended.then(() => false);
    const asking = (async () => {
      await role.arm(point, 'wait');
      const isThere = await Promise.race([nextAt(role, point), lasts(pointMs).then(() => false)]);
      if (isThere) await act();
      await role.disarm(point);
      await role.resume(point);
      return isThere;
    })();
    // Nobody answers for a process that ended by itself.
    return await Promise.race([asking.catch(() => false), gone]);
  }

  async function stop(member: Member, ms: number, point: Point | null): Promise<boolean> {
    const { pid } = at(member).process;
    const sleep = async () => {
      signal(pid, 'SIGSTOP');
      await lasts(ms);
      signal(pid, 'SIGCONT');
    };
    if (point !== null) return await whileAt(member, point, sleep);
    await sleep();
    return true;
  }

  return {
    base(random) {
      const fronts = [at('api').front, at('api 2').front];
      return (fronts[random() < 0.5 ? 0 : 1] as TcpProxy).url.replace(/\/$/, '');
    },
    line: (member, dependency) => at(member).lines[dependency],
    front: (member) => at(member).front as TcpProxy,
    kill,
    whileAt,
    stop,
    isBusy: (member) => locks.has(member),
    async alone(member, strike) {
      while (locks.has(member)) await locks.get(member);
      const running = strike().finally(() => locks.delete(member));
      locks.set(
        member,
        running.catch(() => undefined),
      );
      return await running;
    },
    deaths,
    output: () =>
      [...past, ...[...stations].map(([name, { process }]) => `--- ${name}\n${process.output()}`)].join('\n'),
  };
}

/** One who ended by itself is told by `deaths`. */
function signal(pid: number, name: 'SIGSTOP' | 'SIGCONT'): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}
