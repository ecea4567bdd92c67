#!/usr/bin/env bash
# A server behind a real HAProxy: plain, TLS that HAProxy ends, TLS that goes through. Bytes are right, the peers are the
# clients, certificates are shown to whom they are meant for; and HAProxy does what the agent says.
set -euo pipefail

root=$(realpath "$(dirname "$0")/../..")
build=$(realpath "${1:-$root/build/release}")
PATH=$PATH:/usr/sbin
for program in haproxy openssl python3; do
    command -v "$program" >/dev/null || { echo "skipped: no $program here"; exit 77; }
done
scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace-haproxy-XXXXXX")
server='' proxy=''
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    local pid
    for pid in $proxy $server; do kill -KILL "$pid" 2>/dev/null || true; done
    rm -rf "$scratch"
}
trap clean_up EXIT
fail() {
    echo "failed: $1" >&2
    tail -n 40 "$scratch"/*.log >&2
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

mapfile -t port < <(python3 -c 'import socket
for one in [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]: print(one.getsockname()[1])')
cd "$scratch"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2 -subj "/CN=ca" -keyout ca.key -out ca.pem 2>/dev/null
for name in server client; do
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=$name" -keyout $name.key -out $name.csr 2>/dev/null
    openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out $name.pem \
        -extfile <(echo "subjectAltName=IP:127.0.0.1") 2>/dev/null
done
cat server.pem server.key >proxy.pem
chmod 600 ./*.key proxy.pem
key=000102030405060708090a0b0c0d0e0f
(umask 077; cat >keyring <<KEYS
plain aes-128-cbc $key listener=tcp:127.0.0.1:${port[0]} client-iv
shown aes-128-cbc $key certificate=client client-iv
KEYS
)
cat >node.yaml <<YAML
listeners:
  - {address: "tcp:127.0.0.1:${port[0]}", proxy: v2}
  - {address: "tls:127.0.0.1:${port[1]}", proxy: v2, certificate: server.pem, key: server.key, client_ca: ca.pem}
agent: {address: "tcp:127.0.0.1:${port[2]}"}
admin: unix:admin
keyring: keyring
client_iv: true
profile: $root/config/profiles/cpu-only.yaml
gpus: none
threads: {io: 1, workers: 1, realtime: off}
overload: {tighten: false}
log: {level: debug}
YAML
# From another address, so that the server's peers tell which is whose.
cat >haproxy.cfg <<CFG
global
    stats socket $scratch/haproxy.sock mode 600 level admin
defaults
    mode tcp
    timeout connect 1s
    timeout client 1m
    timeout server 1m
    source 127.0.0.9
frontend plain
    bind 127.0.0.1:${port[3]}
    default_backend node
frontend ended
    bind 127.0.0.1:${port[4]} ssl crt $scratch/proxy.pem ca-file $scratch/ca.pem verify required ssl-min-ver TLSv1.3
    default_backend node
frontend through
    bind 127.0.0.1:${port[5]}
    default_backend node-tls
backend node
    server one 127.0.0.1:${port[0]} send-proxy-v2 weight 100 check inter 200ms agent-check agent-port ${port[2]} agent-inter 100ms agent-send "hello"
backend node-tls
    server one 127.0.0.1:${port[1]} send-proxy-v2
CFG
"$build/server/millraced" node.yaml 2>server.log &
server=$!
await "the server does not start" grep -q start.ready server.log
haproxy -db -f haproxy.cfg >haproxy.log 2>&1 &
proxy=$!
figure() { # NAME: of HAProxy's server
    python3 - "$1" <<'PYTHON'
import csv, socket, sys
channel = socket.socket(socket.AF_UNIX)
channel.connect("haproxy.sock")
channel.sendall(b"show stat\n")
text = b"".join(iter(lambda: channel.recv(65536), b"")).decode()
print(*(row[sys.argv[1]] for row in csv.DictReader(text.removeprefix("# ").splitlines())
        if (row["pxname"], row["svname"]) == ("node", "one")))
PYTHON
}
is() { [[ $(figure "$1") == "$2" ]]; }
await "HAProxy does not have the server's weight" is weight 100
await "HAProxy does not have the server" is status "UP"

head -c 300000 /dev/urandom >clear
iv=00000000000000000000000000000000
openssl enc -aes-128-cbc -K $key -iv $iv -in clear -out expected
encrypt() { # WAY KEY ADDRESS OPTIONS...
    local way=$1 name=$2 address=$3
    shift 3
    "$build/client/millrace" encrypt clear -o out --quiet --key-name "$name" --iv $iv --rate 50Mbit/s --latency 500ms \
        --server "$address" "$@" 2>client.log || fail "$way: no encryption"
    cmp -s out expected || fail "$way: wrong bytes"
}
tls=(--ca ca.pem --certificate client.pem --certificate-key client.key)
encrypt plain plain tcp:127.0.0.1:"${port[3]}"
encrypt "TLS that ends at HAProxy" plain tls:127.0.0.1:"${port[4]}" "${tls[@]}"
encrypt "TLS that goes through" shown tls:127.0.0.1:"${port[5]}" "${tls[@]}"
grep -q 'from tcp:127.0.0.1:' server.log || fail "the peer is not the client"
grep -q 'from tls:127.0.0.1:' server.log || fail "the peer is not the client, of TLS"
if "$build/client/millrace" ping --server tls:127.0.0.1:"${port[5]}" --ca ca.pem 2>client.log; then
    fail "a client without a certificate came through"
fi

kill -USR1 $server
await "HAProxy knows nothing of maintenance" is status "MAINT"
kill -USR2 $server
await "HAProxy knows nothing of its end" is status "UP"
"$build/client/millrace" ping --server tcp:127.0.0.1:"${port[3]}" >/dev/null || fail "no ping after the maintenance"
