/**
 * `node scripts/schema.ts [--check]`: writes `src/postgres/schema.sql`, the schema that all migrations together make, as
 * one file to review. With `--check` it only tells, by its exit code, whether the file is fresh.
 *
 * Read from the catalog, not dumped: the text is the same for every version of PostgreSQL that we support, and applying
 * it to an empty database makes the same schema again (`tests/postgres/schema.test.ts`).
 */
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { connect, type Db } from '../src/postgres/pool.ts';
import { startServer } from '../tests/support/server.ts';

export const schemaFile = path.resolve(import.meta.dirname, '../src/postgres/schema.sql');

const header = `-- The schema after all migrations, for reading and review. Made by scripts/schema.ts; never applied, never edited.\n`;

interface Table {
  name: string;
  options: string | null;
  columns: { name: string; type: string; required: boolean; value: string | null; identity: boolean }[];
  constraints: { name: string; definition: string }[];
  indexes: string[];
}

/** The public schema of a database as SQL, tables and what belongs to them in order of their names. */
export async function describeSchema(db: Db): Promise<string> {
  const { rows } = await db.query<Table>(
    `select class.relname as name,
       array_to_string(class.reloptions, ', ') as options,
       array(
         select jsonb_build_object(
           'name', attname,
           'type', format_type(atttypid, atttypmod),
           'required', attnotnull,
           'value', pg_get_expr(adbin, adrelid),
           'identity', attidentity <> ''
         )
         from pg_attribute
         left join pg_attrdef on adrelid = attrelid and adnum = attnum
         where attrelid = class.oid
           and attnum > 0
           and not attisdropped
         order by attnum
       ) as columns,
       array(
         select jsonb_build_object('name', conname, 'definition', pg_get_constraintdef(oid))
         from pg_constraint
         where conrelid = class.oid
           and contype in ('p', 'u', 'c')
         order by array_position(array['p', 'u', 'c'], contype::text), conname
       ) as constraints,
       array(
         select pg_get_indexdef(indexrelid)
         from pg_index
         join pg_class on pg_class.oid = indexrelid
         where indrelid = class.oid
           and not exists (select from pg_constraint where conindid = indexrelid and contype in ('p', 'u'))
         order by relname
       ) as indexes
     from pg_class class
     where class.relnamespace = 'public'::regnamespace
       and class.relkind = 'r'
       and class.relname <> 'migrations'
     order by class.relname`,
  );
  const references = await db.query<{ line: string }>(
    `select format('alter table %s add constraint %I %s;', conrelid::regclass, conname, pg_get_constraintdef(oid)) as line
     from pg_constraint
     where connamespace = 'public'::regnamespace
       and contype = 'f'
     order by conrelid::regclass::text, conname`,
  );
  // Last, because the tables stand in order of their names and not of their references.
  return [header, ...rows.map(tableText), `${references.rows.map((row) => lower(row.line)).join('\n')}\n`].join('\n');
}

function tableText(table: Table): string {
  const lines = [
    ...table.columns.map((column) =>
      [
        column.name,
        column.type,
        column.required ? 'not null' : null,
        column.value === null ? null : `default ${column.value}`,
        column.identity ? 'generated always as identity' : null,
      ]
        .filter((part) => part !== null)
        .join(' '),
    ),
    ...table.constraints.map((one) => `constraint ${one.name} ${lower(one.definition)}`),
  ];
  const options = table.options ? ` with (${table.options})` : '';
  const body = `create table ${table.name} (\n${lines.map((line) => `  ${line}`).join(',\n')}\n)${options};\n`;
  const indexes = table.indexes.map((line) => `${lower(line).replace('public.', '').replace(' using btree', '')};\n`);
  return [body, ...indexes].join('');
}

/** The catalog's keywords in our case. Quoted text has none of these words in capitals. */
function lower(text: string): string {
  return text.replace(
    /\b(CREATE|UNIQUE|INDEX|ON|USING|WHERE|CHECK|PRIMARY KEY|FOREIGN KEY|REFERENCES|IS|NOT|NULL|AND|OR|ANY|ARRAY|DESC|COALESCE)\b/g,
    (word) => word.toLowerCase(),
  );
}

if (import.meta.main) {
  const server = await startServer();
  try {
    const address = new URL(server.url);
    address.pathname = '/template_skrepka';
    const client = await connect({ url: address.href, name: 'skrepka schema' });
    const text = await describeSchema(client).finally(() => client.end());
    if (!process.argv.includes('--check')) await writeFile(schemaFile, text);
    else if ((await readFile(schemaFile, 'utf8').catch(() => '')) !== text) {
      console.error('src/postgres/schema.sql is stale: run `node scripts/schema.ts`.');
      process.exitCode = 1;
    }
  } finally {
    await server.stop();
  }
}
