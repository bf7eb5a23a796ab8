-- A key from its template and a job's payload: account:{account} -> account:42. Null where the payload has no text, number
-- or boolean at a placeholder's path, or the key is longer than 500 bytes.
-- Two different sets of values never render alike: in a value, % and each sign that stands in the template's own text is
-- written as %XX, or %UXXXXXX beyond ASCII; of fixed length, or what follows could be read as part of it. Without that,
-- "{a}:{b}" would make one key of (x:y, z) and (x, y:z), and a unique key would lose a job. A key that a value begins
-- never begins with @: names that do are pgclaim's own, and a payload must not take the slots of another kind.
-- A number is written without trailing zeros: 1.0 from SQL is the 1 that JavaScript would have sent.
create or replace function pgclaim.render_key(template text, payload jsonb)
returns text
language plpgsql immutable parallel safe
as $$
declare
  special text := regexp_replace(regexp_replace(template, '\{[^}]*\}', '', 'g'), '[A-Za-z0-9%]', '', 'g');
  rendered text := '';
  rest text := template;
  part text[];
  value jsonb;
  written text;
  sign text;
  code text;
begin
  loop
    part := regexp_match(rest, '^([^{]*)\{([^}]*)\}(.*)$');
    exit when part is null;
    value := payload #> string_to_array(part[2], '.');
    if value is null or jsonb_typeof(value) not in ('string', 'number', 'boolean') then
      return null;
    end if;
    written := case jsonb_typeof(value) when 'number' then trim_scale(value::numeric)::text else value #>> '{}' end;
    written := replace(written, '%', '%25');
    for sign in select distinct s collate "C" from regexp_split_to_table(special, '') s where s <> '' loop
      code := upper(to_hex(ascii(sign)));
      written := replace(written, sign, case when ascii(sign) < 128 then '%' || lpad(code, 2, '0') else '%U' || lpad(code, 6, '0') end);
    end loop;
    rendered := rendered || part[1] || written;
    rest := part[3];
  end loop;
  rendered := rendered || rest;
  -- Looked at when all of it is there: behind an empty value the template's own @ stands in front.
  if template like '{%' and rendered like '@%' then
    rendered := '%40' || substr(rendered, 2);
  end if;
  return case when octet_length(rendered) <= 500 then rendered end;
end $$;

-- Several keys, sorted and distinct; null if one of them cannot be rendered or there is none.
create or replace function pgclaim.render_keys(templates text[], payload jsonb)
returns text[]
language sql immutable parallel safe
as $$
  select case when count(*) = count(r.key) then array_agg(distinct r.key order by r.key) end
  from (select pgclaim.render_key(t, payload) collate "C" as key from unnest(templates) t) r
  having count(*) > 0
$$;
