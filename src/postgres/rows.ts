/** The one row of a statement that cannot answer any other number of rows. */

/** Throws when there is none or more than one: an impossible state fails the request, never passes silently. */
export function onlyRow<Row>({ rows }: { readonly rows: readonly Row[] }): Row {
  const [row] = rows;
  if (row === undefined || rows.length > 1) throw new Error(`Expected one row, received ${rows.length}`);
  return row;
}
