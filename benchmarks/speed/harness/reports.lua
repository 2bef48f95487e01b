-- What wrk sends: one report a request, each with an id of its own, or the same file each time.
local key, media_type = os.getenv("SPEED_KEY"), os.getenv("SPEED_MEDIA_TYPE")
local file, value = os.getenv("SPEED_FILE"), os.getenv("SPEED_VALUE")
local prefix, n = os.getenv("SPEED_PREFIX"), 0

wrk.method = "POST"
wrk.headers["content-type"] = media_type
wrk.headers["authorization"] = "Bearer " .. key

if file then
  local opened = assert(io.open(file, "rb"))
  wrk.body = opened:read("*a")
  opened:close()
else
  function request()
    n = n + 1
    local report = string.format('{"report_id":"%s%016x","slot":0,"value":"%s"}', prefix, n, value)
    return wrk.format(nil, nil, nil, report)
  end
end

function done(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"microseconds":%d,"refused":%d,"broken":%d,"p50":%d,"p99":%d}\n',
    summary.requests, summary.duration, failed.status,
    failed.connect + failed.read + failed.write + failed.timeout,
    latency:percentile(50), latency:percentile(99)
  ))
end
