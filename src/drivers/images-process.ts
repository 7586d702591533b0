/**
 * One render child process: how it is started, asked, killed, and what its death means.
 *
 * Life: starting → ready → (asked → answered)* → ended. It ends by itself when it crashes, and by SIGKILL when its
 * parent wants it to; nothing is ever waited for inside a codec.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { type Answer, type Job, parseMessage } from './images-protocol.ts';

export interface ChildSettings {
  /** The script to run; tests pass misbehaving ones. */
  readonly script: URL;
  /** What a picture may take: RLIMIT_DATA beyond what `bareDataBytes` tells. */
  readonly memoryBytes: number;
  /** What an empty Node process counts as data, from `bareDataBytes`. */
  readonly bareBytes: number;
  readonly niceness: number;
  /** How long loading may take. */
  readonly startMs: number;
}

/** Why a child ended, where its parent did not kill it. `log` is for operators. */
export interface Death {
  readonly code: 'render_crashed' | 'render_memory';
  readonly log: string;
}

export interface RenderChild {
  readonly pid: number | undefined;
  /** How many jobs it was asked. */
  readonly asked: () => number;
  /** True when it can be asked, false when it ended before. */
  readonly ready: Promise<boolean>;
  readonly ended: Promise<Death>;
  /** The answer to a job, or null when the child ended instead. One job at a time. */
  ask(job: Job): Promise<Answer | null>;
  kill(): void;
}

/**
 * The limits must hold before the first byte of Node runs, hence the shell. `exec` keeps the process id and the IPC
 * channel. No core dumps: they would hold a user's picture. RLIMIT_AS instead of RLIMIT_DATA aborts Node below 1.6 GB.
 */
const shellScript = 'ulimit -c 0; ulimit -d "$1" || exit 125; niceness=$2; shift 2; exec nice -n "$niceness" "$@"';

/** All that a child is given: no secret, no setting, nothing of the parent's. One malloc arena: RSS −28 to −45 %. */
const environment = { PATH: '/usr/local/bin:/usr/bin:/bin', MALLOC_ARENA_MAX: '1', UV_THREADPOOL_SIZE: '2' };

/** How much of what a child wrote to its stderr is kept. */
const stderrCharsMax = 4000;

/** Starts a child. Never throws: a child that cannot be started is one that has ended. */
export function startChild(settings: ChildSettings): RenderChild {
  const process_ = spawn(
    '/bin/sh',
    [
      '-c',
      shellScript,
      'sh',
      String(Math.ceil((settings.bareBytes + settings.memoryBytes) / 1024)),
      String(settings.niceness),
      process.execPath,
      '--expose-gc',
      fileURLToPath(settings.script),
    ],
    { cwd: '/', env: environment, stdio: ['ignore', 'ignore', 'pipe', 'ipc'] },
  );
  const readStderr = keepTail(process_);
  let asked = 0;
  /** Set when this file killed the child: what would look like the kernel's doing is not. */
  let shot: Death | null = null;
  const shoot = (log: string): void => {
    shot = { code: 'render_crashed', log };
    process_.kill('SIGKILL');
  };
  let answering: { id: number; settle: (answer: Answer | null) => void } | null = null;

  const ended = new Promise<Death>((resolve) => {
    const end = (death: Death): void => {
      resolve(death);
      answering?.settle(null);
      answering = null;
    };
    process_.once('error', (error) => end({ code: 'render_crashed', log: `could not be started: ${error.message}` }));
    process_.once('close', (exitCode, signal) => end(shot ?? verdictOf(exitCode, signal, readStderr())));
  });
  const ready = new Promise<boolean>((resolve) => {
    const timer = setTimeout(() => shoot(`not ready after ${settings.startMs} ms`), settings.startMs);
    const settle = (isReady: boolean): void => {
      clearTimeout(timer);
      resolve(isReady);
    };
    void ended.then(() => settle(false));
    process_.on('message', (value: unknown) => {
      const message = parseMessage(value);
      if (message?.kind === 'ready') settle(true);
      else if (message && answering && message.id === answering.id) {
        answering.settle(message);
        answering = null;
      } else shoot('it said what no child says');
    });
  });

  return {
    pid: process_.pid,
    asked: () => asked,
    ready,
    ended,
    ask(job) {
      asked += 1;
      return new Promise((settle) => {
        answering = { id: job.id, settle };
        // A channel that is closed means a child that is ending: `close` settles.
        process_.send(job, () => {});
      });
    },
    kill() {
      process_.kill('SIGKILL');
    },
  };
}

/**
 * What an empty Node process of this build counts as data before it holds any, bytes; 0 where the system does not tell.
 * Rejects when the process did not answer: then nothing is known, and a guess of 0 would kill every child at its birth.
 *
 * V8 reserves its code range as writable memory: of the 560 MiB that Node 24 starts with on x64, 512 are never touched,
 * yet RLIMIT_DATA counts them, and a limit of 500 MiB kills the process at its birth. So the limit begins above them,
 * and the amount is asked for instead of assumed, because it differs by processor and version.
 */
export function bareDataBytes(timeoutMs = 30_000): Promise<number> {
  const read = "try{process.stdout.write(require('node:fs').readFileSync('/proc/self/status','utf8'))}catch{}";
  return new Promise((resolve, reject) => {
    execFile(process.execPath, ['-e', read], { env: environment, timeout: timeoutMs }, (error, stdout) => {
      if (error) return reject(error);
      resolve(Number(/^VmData:\s+(\d+) kB$/m.exec(stdout)?.[1] ?? 0) * 1024);
    });
  });
}

function keepTail(process_: ChildProcess): () => string {
  let text = '';
  process_.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
    text = (text + chunk).slice(-stderrCharsMax);
  });
  return () => text.trim();
}

/**
 * What a death that the parent did not ask for says. Memory: GLib, C++ and V8 abort with a word about it; a SIGKILL
 * that is not ours is the kernel's out-of-memory killer. Everything else is a crash of the decoder.
 */
export function verdictOf(exitCode: number | null, signal: NodeJS.Signals | null, stderr: string): Death {
  const memory =
    signal === 'SIGKILL' ||
    /out of memory|bad_alloc|failed to allocate|cannot allocate|allocation failed|insufficient memory|error creating thread/i.test(
      stderr,
    );
  const how = signal === null ? `exit code ${exitCode}` : signal;
  return {
    code: memory ? 'render_memory' : 'render_crashed',
    log: `the render child ended by ${how}${stderr === '' ? '' : `; it said: ${stderr.slice(0, 1000)}`}`,
  };
}
