-- One call decides groups of rules. `now`, microseconds since the epoch, comes from the line above.
--
-- ARGV, for each group: operation, number of rules, for each rule its kind and figures, then what the operation needs.
-- KEYS holds one key for each rule of each group, in order. The reply is one flat array: now, then for each group the state
-- of each rule before the operation, then for each run of a take how many passed. A group that failed is one text instead.
--
-- Every number is a whole one below 2^53, which a double holds exactly.
local pcall, floor, format, find, fmod = redis.pcall, math.floor, string.format, string.find, math.fmod
local at, key = 0, 0
local reply = {now}
local kind, base, a, b, c = {}, {}, {}, {}, {}

-- Reads a state of up to three numbers; the unused ones are zero.
local function parse(value)
  local x = tonumber(value)
  if x then return x, 0, 0 end
  local _, _, p, q, s = find(value, '^(%d+) (%d+) ?(%d*)$')
  if not p then return nil end
  return p + 0, q + 0, tonumber(s) or 0
end

-- x * y mod m for x, y < m < 2^45, seven bits of y at a time.
local function multiply(x, y, m)
  if m <= 94906265 then return fmod(x * y, m) end
  local digits, result = {}, 0
  while y > 0 do
    local rest = floor(y / 128)
    digits[#digits + 1] = y - rest * 128
    y = rest
  end
  for i = #digits, 1, -1 do result = fmod(result * 128 + x * digits[i], m) end
  return result
end

-- Reads the state of rule i. A failure is returned as text.
local function read(i)
  local k, p = kind[i], base[i]
  local value = pcall('GET', KEYS[key + i])
  if type(value) == 'table' then return value.err or 'ERR no error text' end
  if k == 't' then
    -- Token bucket. State: the instant at which it will be full, as microseconds (a) and a rest in 1/n of one (b); how much
    -- earlier than that, in 1/n microsecond, it counts as full (c, see the figures in Rust).
    local n = ARGV[p] + 0
    if value then
      a[i], b[i], c[i] = parse(value)
      if not a[i] then return 'BADSTATE ' .. KEYS[key + i] .. ' holds no state of a token bucket' end
      -- Written with other figures: rounded up, so that the change grants nothing.
      if b[i] >= n then a[i], b[i] = a[i] + 1, 0 end
      if c[i] >= n then c[i] = 0 end
    end
    if not value or a[i] < now or (a[i] == now and b[i] <= c[i]) then
      a[i], b[i], c[i] = now, 0, 0
      local unit = ARGV[p + 3] + 0
      if unit > 0 then
        local d = ARGV[p + 4] + 0
        c[i] = floor(multiply(fmod(now, d), unit, d) / ARGV[p + 5])
      end
    end
  end
end

-- How many of `count` equal costs, whose arguments begin at j, fit into rule i.
local function room(i, j, count)
  local p = base[i]
  if kind[i] == 't' then
    local n, cost, rest = ARGV[p] + 0, ARGV[j] + 0, ARGV[j + 1] + 0
    local free, part = ARGV[p + 1] - a[i] + now, ARGV[p + 2] - b[i] + c[i]
    if part < 0 then free, part = free - 1, part + n elseif part >= n then free, part = free + 1, part - n end
    if rest == 0 then
      if free < 0 then return 0 end
      return cost == 0 and count or math.min(count, floor(free / cost))
    end
    local fits = 0
    while fits < count do
      free, part = free - cost, part - rest
      if part < 0 then free, part = free - 1, part + n end
      if free < 0 then break end
      fits = fits + 1
    end
    return fits
  end
end

-- Takes `times` the cost at j from rule i, there or not.
local function take(i, j, times)
  if kind[i] == 't' then
    local n, cost, rest = ARGV[base[i]] + 0, ARGV[j] + 0, ARGV[j + 1] + 0
    a[i] = a[i] + cost * times
    if rest > 0 then
      for _ = 1, times do
        b[i] = b[i] + rest
        if b[i] >= n then a[i], b[i] = a[i] + 1, b[i] - n end
      end
    end
    -- A debt of more than 70 years is one of 70 years: the sums stay exact.
    if a[i] > now + 2251799813685248 then a[i], b[i] = now + 2251799813685248, 0 end
  end
end

-- Gives the cost at j back to rule i; what would make it fuller than full is lost.
local function give(i, j)
  if kind[i] == 't' then
    a[i], b[i] = a[i] - ARGV[j], b[i] - ARGV[j + 1]
    if b[i] < 0 then a[i], b[i] = a[i] - 1, b[i] + ARGV[base[i]] end
  end
end

-- Undoes the debit of rule i whose cost and mark begin at j, unless what it took has come back by itself since.
local function undo(i, j)
  if kind[i] == 't' then
    local mark, rest = ARGV[j + 2] + 0, ARGV[j + 3] + 0
    if mark < now or (mark == now and rest <= c[i]) then return end
    give(i, j)
  end
end

-- Writes the state of rule i; a state like one never used is no key. A failure is returned as text.
local function write(i)
  local name, value, span = KEYS[key + i]
  if kind[i] == 't' then
    if a[i] < now or (a[i] == now and b[i] <= c[i]) then
      value = nil
    elseif c[i] > 0 then
      value = format('%.0f %.0f %.0f', a[i], b[i], c[i])
    elseif b[i] > 0 then
      value = format('%.0f %.0f', a[i], b[i])
    else
      value = a[i]
    end
    span = a[i] - now
  end
  local done
  if value then
    done = pcall('SET', name, value, 'PX', floor(span / 1000) + 1001)
  else
    done = pcall('DEL', name)
  end
  if type(done) == 'table' and done.err then return done.err end
end

-- Arguments of a rule's figures, of its cost, and of its mark.
local figures, costs, marks = {t = 6}, {t = 2}, {t = 2}

while at < #ARGV do
  local operation, rules = ARGV[at + 1], ARGV[at + 2] + 0
  local failed
  at = at + 2
  local width = 0
  for i = 1, rules do
    local k = ARGV[at + 1]
    kind[i], base[i] = k, at + 2
    at = at + 1 + figures[k]
    width = width + costs[k]
    failed = read(i) or failed
  end
  local from = #reply
  if not failed then
    for i = 1, rules do
      reply[#reply + 1] = a[i]
      reply[#reply + 1] = b[i]
    end
  end
  if operation == 'take' then
    local runs, taken = ARGV[at + 1] + 0, false
    at = at + 1
    for _ = 1, runs do
      local passed = ARGV[at + 1] + 0
      at = at + 1
      if not failed then
        local j = at + 1
        for i = 1, rules do
          passed = room(i, j, passed)
          j = j + costs[kind[i]]
        end
        if passed > 0 then
          taken, j = true, at + 1
          for i = 1, rules do
            take(i, j, passed)
            j = j + costs[kind[i]]
          end
        end
        reply[#reply + 1] = passed
      end
      at = at + width
    end
    if taken then
      for i = 1, rules do failed = write(i) or failed end
    end
  elseif operation ~= 'peek' then
    for i = 1, rules do
      local j = at + 1
      at = at + costs[kind[i]]
      if operation == 'undo' then at = at + marks[kind[i]] end
      if not failed then
        if operation == 'reset' then
          local done = pcall('DEL', KEYS[key + i])
          failed = type(done) == 'table' and done.err or nil
        else
          if operation == 'give' then give(i, j) elseif operation == 'undo' then undo(i, j) else take(i, j, 1) end
          failed = write(i)
        end
      end
    end
  end
  if failed then
    for i = #reply, from + 1, -1 do reply[i] = nil end
    reply[from + 1] = failed
  end
  key = key + rules
end
return reply
