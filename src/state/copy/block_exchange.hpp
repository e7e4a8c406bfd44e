#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/copy/device_copy.hpp"

namespace muonrt {

using Blocks = std::vector<std::vector<unsigned char>>;  // indexed by rank

/// Exchanges blocks of host memory over the communicator of an optimizer.
class BlockExchange {
 public:
  explicit BlockExchange(Optimizer& optimizer);

  /// Sends `blocks[r]` to rank r, and returns the blocks that the ranks have sent to this rank.
  /// `receive_bytes[r]` must be the size of the block that rank r sends to this rank. Collective.
  /// Errors: any error of the communicator, which then cannot be used again.
  Blocks run(const Blocks& blocks, const std::vector<int64_t>& receive_bytes);

 private:
  void exchange(const std::vector<SendTo>& sends, const std::vector<ReceiveFrom>& receives);
  void exchange_staged(std::vector<SendTo> sends, const std::vector<ReceiveFrom>& receives);

  Comm& comm_;
  Device& device_;
  DeviceCopy copy_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
  Buffer out_, in_;  // only used if the host cannot access the device's memory
};

}  // namespace muonrt
