#!/usr/bin/env bash
# `millrace hls` beside ffmpeg: eight live renditions in, the encrypted playlists out. What ffmpeg plays back of them
# through nginx has the frames of the clear ones; the server is killed once in the middle, and so is millrace hls
# itself; keys rotate; nothing clear is in the output. Then LL-HLS by HTTP, decrypted by OpenSSL.
set -euo pipefail

root=$(realpath "$(dirname "$0")/../..")
build=${1:-$PWD/build/release}
for program in ffmpeg openssl nginx curl; do
    command -v "$program" >/dev/null || { echo "skipped: no $program here"; exit 77; }
done
scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace-hls-XXXXXX")
server='' hls='' nginx=''
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local pid
    for pid in $hls $server $nginx; do kill -KILL "$pid" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean_up EXIT
fail() {
    echo "failed: $1" >&2
    tail -n 30 "$scratch"/*.log >&2
    exit 1
}
await() { # WHAT COMMAND...: until it succeeds, for a minute
    local what=$1 tries
    shift
    for ((tries = 0; tries < 600; tries++)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    fail "$what"
}

mkdir "$scratch"/{in,out,keys,nginx}
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
cat >"$scratch/millraced.yaml" <<YAML
listeners:
  - {address: "unix:$scratch/socket", mode: 0600}
admin: "unix:$scratch/admin"
client_iv: true
profile: $root/config/profiles/cpu-only.yaml
gpus: none
threads: {io: 1, workers: 1, realtime: off}
overload: {tighten: false}
YAML
start_server() {
    rm -f "$scratch/socket"
    "$build/server/millraced" "$scratch/millraced.yaml" >>"$scratch/server.log" 2>&1 &
    server=$!
    await "the server does not start" test -S "$scratch/socket"
}
start_hls() { # ARGUMENTS...
    "$build/client/millrace" hls --server "unix:$scratch/socket" "$@" >>"$scratch/hls.log" 2>&1 &
    hls=$!
}
stop_hls() {
    kill -TERM "$hls"
    wait "$hls" || fail "millrace hls stopped with status $?"
    hls=''
}
kill_hard() { # PID
    kill -KILL "$1"
    wait "$1" 2>/dev/null || true
}
decrypt() { # KEY-FILE IV: standard input
    openssl enc -d -aes-128-cbc -K "$(od -An -tx1 "$1" | tr -d ' \n')" -iv "$2"
}

# ---- eight live renditions beside ffmpeg, played back through nginx ----

# Four of MPEG-TS and four of fMP4, 16 segments each, which stay in the folder to be compared.
play_port=$(free_port)
watch=(--input "$scratch/in" --output "$scratch/out" --keys "$scratch/keys" --rotate 2
    --key-uri "http://127.0.0.1:$play_port/keys/{id}.key")
start_server
start_hls "${watch[@]}"
four=(-map 0:v -map 0:v -map 0:v -map 0:v)
variants=(-hls_time 0.5 -hls_list_size 0 -var_stream_map 'v:0 v:1 v:2 v:3' -master_pl_name master.m3u8)
ffmpeg -nostdin -loglevel error -re -f lavfi -i "testsrc=size=160x90:rate=10:duration=8" \
    "${four[@]}" -c:v mpeg2video -g 5 -f hls "${variants[@]}" \
    -hls_segment_filename "$scratch/in/ts%v/%d.ts" "$scratch/in/ts%v/index.m3u8" \
    "${four[@]}" -c:v mpeg4 -g 5 -f hls "${variants[@]}" -hls_segment_type fmp4 \
    -hls_segment_filename "$scratch/in/mp%v/%d.m4s" "$scratch/in/mp%v/index.m3u8" >"$scratch/ffmpeg.log" 2>&1 &
packager=$!

await "nothing is published" test -s "$scratch/out/ts0/4.ts"
kill_hard "$server"
sleep 0.5
start_server
await "it does not go on after a restart of the server" test -s "$scratch/out/ts0/9.ts"
kill_hard "$hls"
start_hls "${watch[@]}"
wait "$packager" || fail "ffmpeg"
for name in ts0 ts1 ts2 ts3 mp0 mp1 mp2 mp3; do
    await "$name does not end" grep -q ENDLIST "$scratch/out/$name/index.m3u8"
done
rekeyed=$(curl -s --unix-socket "$scratch/admin" http://localhost/metrics | awk '/rekeyed_total/ && !/^#/ { n += $NF } END { print n }')
[[ $rekeyed -ge 8 ]] || fail "few keys were changed within a stream: $rekeyed"
stop_hls

cat >"$scratch/nginx/nginx.conf" <<CONF
pid $scratch/nginx/pid;
error_log $scratch/nginx.log;
daemon off;
master_process off;
user root;
events {}
http {
    access_log off;
    client_body_temp_path $scratch/nginx/body;
    proxy_temp_path $scratch/nginx/proxy;
    fastcgi_temp_path $scratch/nginx/fastcgi;
    uwsgi_temp_path $scratch/nginx/uwsgi;
    scgi_temp_path $scratch/nginx/scgi;
    server {
        listen 127.0.0.1:$play_port;
        location /keys/ { alias $scratch/keys/; }
        location / { root $scratch/out; }
    }
}
CONF
[[ $(id -u) == 0 ]] || sed -i '/^user/d' "$scratch/nginx/nginx.conf"
nginx -c "$scratch/nginx/nginx.conf" >>"$scratch/nginx.log" 2>&1 &
nginx=$!
await "nginx does not start" curl -sf "http://127.0.0.1:$play_port/ts0/index.m3u8"
frames() {
    ffmpeg -nostdin -loglevel error -i "$1" -map 0:v -f framemd5 - 2>>"$scratch/play.log" | grep -v '^#'
}
for name in ts0 ts1 ts2 ts3 mp0 mp1 mp2 mp3; do
    frames "$scratch/in/$name/index.m3u8" >"$scratch/clear" || fail "the clear $name can not be played"
    frames "http://127.0.0.1:$play_port/$name/index.m3u8" >"$scratch/played" || fail "$name can not be played"
    [[ $(wc -l <"$scratch/clear") -eq 80 ]] || fail "$name has not 80 frames"
    cmp "$scratch/clear" "$scratch/played" || fail "frames of $name differ"
    [[ $(grep -o 'URI="http[^"]*' "$scratch/out/$name/index.m3u8" | sort -u | wc -l) -ge 6 ]] ||
        fail "keys of $name have changed less than five times"
    for clear in "$scratch/in/$name"/*.{ts,m4s,mp4}; do
        if [[ -e $clear ]] && cmp -s "$clear" "$scratch/out/$name/${clear##*/}"; then fail "$clear is in clear"; fi
    done
done
test -s "$scratch/out/master.m3u8" || fail "there is no master playlist"
if grep -q GAP "$scratch"/out/*/*.m3u8; then fail "there are gaps"; fi
[[ $(stat -c %a "$scratch"/keys/*.key | sort -u) == 600 ]] || fail "keys are not private"
kill -TERM "$nginx"
wait "$nginx" || true
nginx=''

# ---- by HTTP on a Unix socket: parts, keys of an info file, DELETE ----

mkdir "$scratch/put"
put() { curl -s --fail-with-body --unix-socket "$scratch/http" -T "$1" "http://localhost/$2" || fail "PUT $2"; }
get() { curl -sf --unix-socket "$scratch/http" "http://localhost/$1"; }
give_key() { # NUMBER [IV]: the keys to come
    head -c 16 /dev/urandom >"$scratch/key$1"
    chmod 600 "$scratch/key$1"
    printf '%s\n' "https://tv.example/key$1" "$scratch/key$1" ${2:+"$2"} >"$scratch/info.new"
    mv "$scratch/info.new" "$scratch/info"
}
iv=000102030405060708090a0b0c0d0e0f
give_key 1
start_hls --listen "unix:$scratch/http" --output "$scratch/put" --key-info "$scratch/info"
await "millrace hls does not listen" get metrics
for name in 7.0 7.1 7 8.0 8; do head -c $((100000 + RANDOM)) /dev/urandom >"$scratch/clear.$name"; done
playlist='#EXTM3U
#EXT-X-VERSION:9
#EXT-X-TARGETDURATION:2
#EXT-X-PART-INF:PART-TARGET=1
#EXT-X-MEDIA-SEQUENCE:7
#EXT-X-PART:DURATION=1,URI="7.0.ts"
#EXT-X-PART:DURATION=1,URI="7.1.ts"
#EXTINF:2,
7.ts
#EXT-X-PART:DURATION=1,URI="8.0.ts"'
put "$scratch/clear.7.0" live/7.0.ts
printf '%s\n' "$playlist" | put - live/index.m3u8
for name in 7.1 7; do put "$scratch/clear.$name" "live/$name.ts"; done
await "a segment is not published" get live/7.ts
give_key 2 "$iv"
put "$scratch/clear.8.0" live/8.0.ts
await "a part is not published" grep -q '8\.0' "$scratch/put/live/index.m3u8"
printf '%s\n' "$playlist" '#EXTINF:2,' 8.ts | put - live/index.m3u8
put "$scratch/clear.8" live/8.ts
await "the second segment is not published" grep -q '^8\.ts' "$scratch/put/live/index.m3u8"
for name in 7.0 7.1 7; do
    get "live/$name.ts" | decrypt "$scratch/key1" "$(printf %032x 7)" | cmp - "$scratch/clear.$name" || fail "$name"
done
for name in 8.0 8; do
    get "live/$name.ts" | decrypt "$scratch/key2" "$iv" | cmp - "$scratch/clear.$name" || fail "$name"
done
key='#EXT-X-KEY:METHOD=AES-128,URI="https://tv.example/key'
printf '%s\n' "$playlist" '#EXTINF:2,' 8.ts | sed -e "/7\.0/i ${key}1\"" -e "/8\.0/i ${key}2\",IV=0x$iv" |
    diff - <(get live/index.m3u8) || fail "the playlist is another one"
curl -sf --unix-socket "$scratch/http" -X DELETE http://localhost/live/7.0.ts || fail "DELETE"
if get live/7.0.ts || [[ -e $scratch/put/live/7.0.ts ]]; then fail "DELETE leaves it there"; fi
curl -sf --unix-socket "$scratch/http" -X DELETE http://localhost/live/index.m3u8 || fail "DELETE"
if get live/index.m3u8; then fail "DELETE leaves the playlist there"; fi
printf '%s\n' '#EXTM3U' '#EXT-X-MEDIA-SEQUENCE:8' '#EXTINF:2,' 8.ts | put - live/index.m3u8
await "a playlist that was deleted does not come back" get live/index.m3u8
for path in '%2e%2e/info' '.hidden' ''; do
    if get "$path" >/dev/null; then fail "'$path' is served"; fi
done
get metrics | grep -q '^millrace_hls_parts_total 3$' || fail "metrics"
stop_hls
[[ ! -e $scratch/http ]] || fail "the socket stays"
echo passed
