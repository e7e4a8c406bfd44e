#include "state/copy/block_exchange.hpp"

#include "backend/local_stream.hpp"
#include "optimizer/agreement.hpp"

namespace muonrt {

BlockExchange::BlockExchange(Optimizer& optimizer)
    : comm_(optimizer.comm()),
      device_(optimizer.device()),
      copy_(device_, optimizer.settings().timeout_ms),
      // this thread waits for each exchange, so if possible it also runs the exchange
      stream_(device_.create_stream(device_.host_reaches_memory() ? StreamKind::kCommOnCaller
                                                                  : comm_.stream_kind())),
      done_(device_.create_event()) {}

Blocks BlockExchange::run(const Blocks& blocks, const std::vector<int64_t>& receive_bytes) {
  Blocks out(blocks.size());
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  run_or_abort(comm_, [&] {
    for (size_t r = 0; r < blocks.size(); ++r) {
      out[r].resize(static_cast<size_t>(receive_bytes[r]));
      const auto peer = static_cast<int32_t>(r);
      if (!blocks[r].empty()) sends.push_back({peer, blocks[r].data(), std::ssize(blocks[r])});
      if (!out[r].empty()) receives.push_back({peer, out[r].data(), std::ssize(out[r])});
    }
    if (!device_.host_reaches_memory()) return exchange_staged(sends, receives);
    exchange(sends, receives);
  });
  return out;
}

void BlockExchange::exchange(const std::vector<SendTo>& sends,
                             const std::vector<ReceiveFrom>& receives) {
  comm_.exchange(*stream_, sends, receives);
  drain(device_, *stream_, *done_);
  if (const auto error = comm_.error()) throw *error;
}
void BlockExchange::exchange_staged(std::vector<SendTo> sends,
                                    const std::vector<ReceiveFrom>& receives) {
  const auto bytes = [](const auto& messages) {
    int64_t sum = 0;
    for (const auto& m : messages) sum += round_up(m.bytes, kMemoryAlignment);
    return sum;
  };
  if (out_.bytes() < bytes(sends)) out_ = Buffer(device_, bytes(sends));
  if (in_.bytes() < bytes(receives)) in_ = Buffer(device_, bytes(receives));
  char *to = out_.as<char>(), *from = in_.as<char>();
  for (SendTo& s : sends) {
    copy_.write(to, s.data, s.bytes);
    s.data = to;
    to += round_up(s.bytes, kMemoryAlignment);
  }
  std::vector<ReceiveFrom> staged = receives;
  for (ReceiveFrom& r : staged) {
    r.data = from;
    from += round_up(r.bytes, kMemoryAlignment);
  }
  exchange(sends, staged);
  for (size_t i = 0; i < staged.size(); ++i)
    copy_.read(receives[i].data, staged[i].data, staged[i].bytes);
}

}  // namespace muonrt
