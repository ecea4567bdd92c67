// A C++ program that uses libmillrace as a stranger would: nothing of ours but <millrace/millrace.h>, one thread,
// no call that waits but poll. Sends messages with a pattern, changes the key between two of them, and compares every
// byte with what OpenSSL makes of them block by block. Address of a server in argv[1]; see test_client_cpp.sh.
#include <millrace/millrace.h>

#include <openssl/evp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t block = MILLRACE_BLOCK_BYTES;
constexpr std::size_t packet_bytes = 160;
constexpr std::size_t crypt_blocks = 1, skip_blocks = 3;
constexpr std::uint64_t rekeyed_from = 4; // number of the first message under the second key
constexpr int patience_ms = 30000;

// Several packets and one; whole blocks and not; shorter than a block; nothing.
constexpr std::array<std::size_t, 8> message_bytes = {1000, 160, 161, 15, 0, 1600, 64, 777};

const Bytes first_key = {'t', 'h', 'e', ' ', 'f', 'i', 'r', 's', 't', ' ', 'k', 'e', 'y', '.', '.', '.'};
const Bytes second_key = {'t', 'h', 'e', ' ', 's', 'e', 'c', 'o', 'n', 'd', ' ', 'k', 'e', 'y', '.', '.'};
const Bytes iv = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

void require(bool holds, const std::string &what)
{
    if (!holds)
        throw std::runtime_error(what);
}

Bytes message(std::size_t number)
{
    Bytes bytes(message_bytes.at(number));
    for (std::size_t at = 0; at < bytes.size(); at++)
        bytes[at] = static_cast<std::uint8_t>(number * 31 + at);
    return bytes;
}

// Every block by itself: encrypted where the pattern says so and it is whole, else as it is.
Bytes expected(std::size_t number)
{
    const Bytes &key = number < rekeyed_from ? first_key : second_key;
    const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> cipher(EVP_CIPHER_CTX_new(),
                                                                                 EVP_CIPHER_CTX_free);
    require(EVP_EncryptInit_ex(cipher.get(), EVP_aes_128_cbc(), nullptr, key.data(), iv.data()) == 1 &&
                EVP_CIPHER_CTX_set_padding(cipher.get(), 0) == 1,
            "OpenSSL has no AES-CBC");
    Bytes bytes = message(number);
    for (std::size_t at = 0; at + block <= bytes.size(); at += block) {
        int length = 0;
        if (at / block % (crypt_blocks + skip_blocks) < crypt_blocks)
            require(EVP_EncryptUpdate(cipher.get(), &bytes[at], &length, &bytes[at], block) == 1,
                    "OpenSSL does not encrypt");
    }
    return bytes;
}

class Stream
{
  public:
    explicit Stream(const char *address);
    ~Stream()
    {
        millrace_disconnect(connection_);
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    void open();
    void rekey();
    void send(std::size_t number);
    void await_messages(std::size_t count);
    void close();

  private:
    void check(millrace_status status, const char *doing) const
    {
        require(status == MILLRACE_OK,
                std::string(doing) + ": " + millrace_status_text(status) + ": " + error_.data());
    }
    template <typename Condition> void turn_until(const char *what, Condition holds);
    void take(const struct millrace_result &result);

    millrace *connection_ = nullptr;
    mutable std::array<char, MILLRACE_TEXT_BYTES> error_{};
    std::string refusal_;
    std::uint32_t id_ = 0;
    std::uint64_t rekeyed_ = 0, closed_packets_ = 0;
    bool closed_ = false;
    std::vector<std::size_t> packet_messages_; // of each packet that was sent, by sequence
    std::vector<bool> last_;                   // whether it ended its message
    std::vector<Bytes> received_ = std::vector<Bytes>(message_bytes.size());
    std::size_t complete_ = 0;
};

Stream::Stream(const char *address)
{
    check(millrace_connect(address, nullptr, patience_ms, &connection_, error_.data()), "connect");
    millrace_callbacks callbacks = {};
    callbacks.size = sizeof callbacks;
    callbacks.argument = this;
    callbacks.on_opened = [](void *self, std::uint32_t, const millrace_opened *opened) {
        static_cast<Stream *>(self)->id_ = opened->stream;
    };
    callbacks.on_refused = [](void *self, std::uint32_t, const millrace_refused *refused) {
        static_cast<Stream *>(self)->refusal_ =
            std::string(millrace_refusal_name(refused->code)) + ": " + refused->text;
    };
    callbacks.on_rekeyed = [](void *self, std::uint32_t, const millrace_rekeyed *rekeyed) {
        static_cast<Stream *>(self)->rekeyed_ = rekeyed->first;
    };
    callbacks.on_result = [](void *self, const millrace_result *result) {
        static_cast<Stream *>(self)->take(*result);
    };
    callbacks.on_closed = [](void *self, std::uint32_t, const millrace_closed *closed) {
        static_cast<Stream *>(self)->closed_ = true;
        static_cast<Stream *>(self)->closed_packets_ = closed->packets;
    };
    check(millrace_set_callbacks(connection_, &callbacks, error_.data()), "callbacks");
}

// The event loop of this program, which a real one has already.
template <typename Condition> void Stream::turn_until(const char *what, Condition holds)
{
    while (!holds()) {
        pollfd ready = {millrace_descriptor(connection_), millrace_events(connection_), 0};
        require(poll(&ready, 1, patience_ms) > 0, std::string(what) + ": nothing comes");
        check(millrace_process(connection_, 0, error_.data()), what);
        require(refusal_.empty(), std::string(what) + " is refused: " + refusal_);
    }
}

void Stream::open()
{
    millrace_open contract = {};
    contract.size = sizeof contract;
    contract.packet_bytes = packet_bytes;
    contract.burst_packets = 16;
    contract.interval_ns = 1000000;
    contract.latency_ns = 100000000;
    contract.cipher = MILLRACE_CIPHER_AES_128_CBC;
    contract.padding = MILLRACE_PADDING_CLEAR;
    contract.unit = MILLRACE_UNIT_MESSAGE;
    contract.iv_source = MILLRACE_IV_CONSTANT;
    contract.crypt_blocks = crypt_blocks;
    contract.skip_blocks = skip_blocks;
    contract.has_iv = true;
    std::copy(iv.begin(), iv.end(), contract.iv);
    contract.key_kind = MILLRACE_KEY_INLINE;
    contract.key = first_key.data();
    contract.key_bytes = first_key.size();
    check(millrace_send_open(connection_, &contract, nullptr, error_.data()), "open");
    turn_until("open", [this] { return id_ != 0; });
}

void Stream::rekey()
{
    millrace_rekey change = {};
    change.size = sizeof change;
    change.stream = id_;
    change.key_kind = MILLRACE_KEY_INLINE;
    change.key = second_key.data();
    change.key_bytes = second_key.size();
    change.first = rekeyed_from;
    check(millrace_send_rekey(connection_, &change, nullptr, error_.data()), "rekey");
    turn_until("rekey", [this] { return rekeyed_ == rekeyed_from; });
}

void Stream::send(std::size_t number)
{
    const Bytes bytes = message(number);
    std::size_t sent = 0;
    do {
        const std::size_t part = std::min(packet_bytes, bytes.size() - sent);
        const bool last = sent + part == bytes.size();
        std::uint32_t sequence = 0;
        check(millrace_data_part(connection_, id_, bytes.data() + sent, static_cast<std::uint32_t>(part),
                                 (sent == 0 ? MILLRACE_DATA_FIRST : 0) | (last ? MILLRACE_DATA_LAST : 0),
                                 &sequence, error_.data()),
              "data");
        require(sequence == packet_messages_.size(), "packets are not numbered one after another");
        packet_messages_.push_back(number);
        last_.push_back(last);
        sent += part;
    } while (sent < bytes.size());
}

void Stream::take(const millrace_result &result)
{
    if (result.status != MILLRACE_RESULT_OK)
        refusal_ = millrace_result_name(result.status);
    Bytes &bytes = received_.at(packet_messages_.at(result.sequence));
    bytes.insert(bytes.end(), result.ciphertext, result.ciphertext + result.bytes);
    complete_ += last_.at(result.sequence) ? 1 : 0;
}

void Stream::await_messages(std::size_t count)
{
    turn_until("results", [this, count] { return complete_ == count; });
    for (std::size_t number = 0; number < count; number++)
        require(received_.at(number) == expected(number),
                "message " + std::to_string(number) + " came back with wrong bytes");
}

void Stream::close()
{
    check(millrace_send_close(connection_, id_, error_.data()), "close");
    turn_until("close", [this] { return closed_; });
    require(closed_packets_ == packet_messages_.size(), "CLOSED counts other packets than were sent");
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2) {
        std::cerr << "usage: " << argv[0] << " ADDRESS\n";
        return 2;
    }
    try {
        require(std::strcmp(millrace_version(), MILLRACE_VERSION) == 0, "header and library differ");
        Stream stream(argv[1]);
        stream.open();
        for (std::size_t number = 0; number < rekeyed_from; number++)
            stream.send(number);
        stream.rekey(); // behind messages that may not have come back yet
        for (std::size_t number = rekeyed_from; number < message_bytes.size(); number++)
            stream.send(number);
        stream.await_messages(message_bytes.size());
        stream.close();
    } catch (const std::exception &failure) {
        std::cerr << failure.what() << '\n';
        return 1;
    }
    std::cout << message_bytes.size() << " messages, byte for byte right\n";
    return 0;
}
