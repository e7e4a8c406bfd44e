#include "support/transport_checks.hpp"

#include <bit>
#include <limits>

#include "base/text.hpp"

namespace transport_test {

using muonrt::cat;
using muonrt::ReceiveFrom;
using muonrt::SendTo;
using muonrt::Transport;

namespace {

constexpr size_t kRedZone = 32;
constexpr unsigned char kRedZoneByte = 0xa5, kPoison = 0xff;

unsigned char byte_at(uint64_t seed, int from, int to, int64_t exchange, int64_t i) {
  const auto pair = static_cast<uint64_t>(from * 4099 + to);
  const uint64_t key = scramble(seed, pair * 1000003u + static_cast<uint64_t>(exchange));
  return static_cast<unsigned char>(scramble(key, static_cast<uint64_t>(i) / 8) >> (8 * (i % 8)));
}

/// Memory with red zones before and after it, to detect writes outside of the message.
class RedZoned {
 public:
  explicit RedZoned(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)), memory_(bytes_ + 2 * kRedZone, kRedZoneByte) {
    for (size_t i = 0; i < bytes_; ++i) data()[i] = kPoison;
  }
  unsigned char* data() { return memory_.data() + kRedZone; }
  bool intact() const {
    for (size_t i = 0; i < kRedZone; ++i) {
      if (memory_[i] != kRedZoneByte || memory_[kRedZone + bytes_ + i] != kRedZoneByte)
        return false;
    }
    return true;
  }

 private:
  size_t bytes_;
  std::vector<unsigned char> memory_;
};

template <class Bytes>
std::string exchange(Transport& transport, const std::string& name, Bytes bytes_of, uint64_t seed,
                     int64_t index) {
  const int rank = transport.rank(), size = transport.size();
  std::vector<RedZoned> out, in;
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (int step = 0; step < size; ++step) {
    const int to = (rank + step) % size, from = (rank - step + size) % size;
    if (const int64_t bytes = bytes_of(rank, to)) {
      out.emplace_back(bytes);
      for (int64_t i = 0; i < bytes; ++i) out.back().data()[i] = byte_at(seed, rank, to, index, i);
      sends.push_back({to, nullptr, bytes});
    }
    if (const int64_t bytes = bytes_of(from, rank)) {
      in.emplace_back(bytes);
      receives.push_back({from, nullptr, bytes});
    }
  }
  for (size_t i = 0; i < sends.size(); ++i) sends[i].data = out[i].data();
  for (size_t i = 0; i < receives.size(); ++i) receives[i].data = in[i].data();
  if (sends.empty() && receives.empty() && name == "sparse sequence") return "";

  transport.exchange(sends, receives);

  const auto check = [&](RedZoned& memory, int from, int to, int64_t bytes, const char* what) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < bytes; ++i) {
      wrong += memory.data()[i] != byte_at(seed, from, to, index, i);
    }
    if (wrong == 0 && memory.intact()) return std::string();
    return cat(name, " ", index, ": ", what, " ", from, " -> ", to, ": ", wrong, " of ", bytes,
               " bytes wrong", memory.intact() ? "" : ", red zones written; ");
  };
  std::string problems;
  for (size_t i = 0; i < sends.size(); ++i) {
    problems += check(out[i], rank, sends[i].peer, sends[i].bytes, "sent");
  }
  for (size_t i = 0; i < receives.size(); ++i) {
    problems += check(in[i], receives[i].peer, rank, receives[i].bytes, "received");
  }
  return problems;
}

}  // namespace

uint64_t scramble(uint64_t seed, uint64_t x) {
  uint64_t z = (seed + 1) * 0x9e3779b97f4a7c15ull + x * 0xd1342543de82ef95ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {"dense", [](int, int, int) -> int64_t { return 64; }},
      {"empty", [](int, int, int) -> int64_t { return 0; }},
      {"to oneself", [](int from, int to, int) -> int64_t { return from == to ? 48 : 0; }},
      {"ring", [](int from, int to, int size) -> int64_t { return to == (from + 1) % size; }},
      {"to rank 0", [](int from, int to, int) -> int64_t { return to == 0 ? 7 * from : 0; }},
      {"from the last",
       [](int from, int to, int size) -> int64_t { return from == size - 1 ? 100 + to : 0; }},
      {"triangle", [](int from, int to, int) -> int64_t { return from <= to ? 3 * from + to : 0; }},
      {"odd pairs", [](int from, int to, int) -> int64_t { return (from + to) % 2 ? 1021 : 0; }},
      {"uneven", [](int from, int to, int) -> int64_t { return (from * 7 + to * 13) % 5 * 333; }},
  };
  return all;
}

std::string check_exchange(Transport& transport, const Pattern& pattern, uint64_t seed,
                           int64_t index) {
  const int size = transport.size();
  return exchange(
      transport, pattern.name, [&](int from, int to) { return pattern.bytes(from, to, size); },
      seed, index);
}

std::string check_sparse_sequence(Transport& transport, int64_t count, uint64_t seed) {
  std::string problems;
  for (int64_t k = 0; k < count; ++k) {
    const auto bytes_of = [&](int from, int to) -> int64_t {
      const uint64_t draw = scramble(seed + static_cast<uint64_t>(k),
                                     static_cast<uint64_t>(from * transport.size() + to));
      return draw % 4 == 0 ? static_cast<int64_t>(1 + (draw >> 8) % 700) : 0;
    };
    problems += exchange(transport, "sparse sequence", bytes_of, seed, k);
  }
  return problems;
}

std::string check_allgather(Transport& transport, int64_t bytes, uint64_t seed) {
  const int rank = transport.rank(), size = transport.size();
  std::vector<unsigned char> mine(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i) mine[static_cast<size_t>(i)] = byte_at(seed, rank, 0, 0, i);
  RedZoned all(bytes * size);
  transport.allgather(mine.data(), all.data(), bytes);
  int64_t wrong = 0;
  for (int from = 0; from < size; ++from) {
    for (int64_t i = 0; i < bytes; ++i) {
      wrong += all.data()[from * bytes + i] != byte_at(seed, from, 0, 0, i);
    }
  }
  if (wrong == 0 && all.intact()) return "";
  return cat("allgather of ", bytes, ": ", wrong, " bytes wrong",
             all.intact() ? "" : ", red zones");
}

std::string check_reductions(Transport& transport, int64_t n, uint64_t seed) {
  const int rank = transport.rank(), size = transport.size();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto bits = [&](int r, int64_t i) {
    return scramble(seed + 17 * static_cast<uint64_t>(r), static_cast<uint64_t>(i));
  };
  // i % 6 selects the case: numbers, a NaN on one rank, zeros, infinities, NaN everywhere,
  // subnormal numbers. The expected values are constants, so that the test does not compute them
  // with the code under test.
  const auto value = [&](int r, int64_t i) -> float {
    const bool chosen = r == static_cast<int>(i % size);
    switch (i % 6) {
      case 0:
        return static_cast<float>(static_cast<int64_t>(bits(r, i) >> 40)) - 8388608.0f;
      case 1:
        return chosen ? std::bit_cast<float>(0xffc01234u) : kInf;
      case 2:
        return chosen ? 0.0f : -0.0f;
      case 3:
        return chosen ? -3.0f : -kInf;
      case 4:
        return std::numeric_limits<float>::quiet_NaN();
      default:
        return chosen ? std::bit_cast<float>(3u) : std::bit_cast<float>(2u);
    }
  };
  const auto expected = [&](int64_t i) -> uint32_t {
    switch (i % 6) {
      case 0: {
        float best = value(0, i);
        for (int r = 1; r < size; ++r) best = value(r, i) > best ? value(r, i) : best;
        return std::bit_cast<uint32_t>(best);
      }
      case 2:
        return 0u;
      case 3:
        return std::bit_cast<uint32_t>(-3.0f);
      case 5:
        return 3u;
      default:
        return 0x7fc00000u;
    }
  };
  std::vector<float> floats(static_cast<size_t>(n)), most(static_cast<size_t>(n), -1.0f);
  std::vector<int64_t> integers(static_cast<size_t>(n)), sums(static_cast<size_t>(n), -1);
  for (int64_t i = 0; i < n; ++i) {
    floats[static_cast<size_t>(i)] = value(rank, i);
    integers[static_cast<size_t>(i)] = static_cast<int64_t>(bits(rank, i));
  }
  transport.reduce_max(floats.data(), most.data(), n);
  transport.reduce_max(floats.data(), floats.data(), n);
  transport.reduce_sum(integers.data(), sums.data(), n);
  transport.reduce_sum(integers.data(), integers.data(), n);
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    uint64_t sum = 0;
    for (int r = 0; r < size; ++r) sum += bits(r, i);
    wrong += std::bit_cast<uint32_t>(most[at]) != expected(i);
    wrong += std::bit_cast<uint32_t>(floats[at]) != expected(i);
    wrong += static_cast<uint64_t>(sums[at]) != sum;
    wrong += static_cast<uint64_t>(integers[at]) != sum;
  }
  return wrong == 0 ? "" : cat("reductions of ", n, ": ", wrong, " values wrong");
}

}  // namespace transport_test
