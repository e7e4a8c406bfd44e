#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// The rate of matrix products whose smallest dimension is `size`, in FLOP/s. A product of m x k by
/// k x n has 2 m n k FLOPs; a symmetric one counts the same, although half of it is computed.
struct ProductRate {
  double size = 0, symmetric = 0, general = 0;
};

/// Passes over memory with different rates: messages and buffers, gradients to messages, matrices
/// that are stored transposed, the normalization, and updates of weights.
enum class PassKind : int32_t {
  kCopy,
  kPack,
  kTranspose,
  kNormalize,
  kCommit,
  kStochastic,
  kAdamW
};
constexpr size_t kPassKinds = 7;
/// By kind, as in the profiles.
constexpr std::array<const char*, kPassKinds> kPassNames = {
    "copy", "pack", "transpose", "normalize", "commit", "stochastic", "adamw"};

/// The rates of passes, by kind, in bytes per second. `footprint` is the number of bytes that are
/// read and written before the same byte is used again: caches may keep them until then.
struct PassRate {
  double footprint = 0;
  std::array<double, kPassKinds> rates = {};
};

/// A machine as the model (src/model) and the cost model of the plan see it. All ranks have the
/// same one, and one device each. Every number of the file has a source (tools/machines/README.md).
struct MachineProfile {
  std::string name, title;
  bool gpu = true;
  double memory_bytes = 0;            // of a device
  std::vector<ProductRate> products;  // ascending sizes; 16-bit operands
  double f32_ratio = 1;               // rate of products of f32 relative to those of 16 bits
  double product_seconds = 0;         // a call of products, in addition to their FLOPs
  double pass_bytes = 0;              // bytes per second of a pass over memory
  std::vector<PassRate> passes;       // ascending footprints; empty: all as `pass_bytes`
  double normalize_ratio = 1;         // rate of the normalization relative to other passes
  double pass_seconds = 0;            // a pass, in addition to its bytes
  double launch_seconds = 0;          // the host enqueues one operation
  double handover_seconds = 0;        // a stream continues after it has waited for another one
  double busy_handover_seconds = 0;   // the same on a host all of whose cores compute
  double processors = 1;              // SMs or compute units of a GPU; cores of a host's node
  double exchange_processors = 0;     // those that products leave to exchanges; see shares_cores()
  double rank_threads = 0;            // of a host; 0: the cores of a node, divided by its ranks
  double node_ranks = 1;              // consecutive ranks with the fast links of a node
  double node_bytes = 0;              // bytes per second and direction of a rank inside a node
  double network_bytes = 0;           // the same between nodes
  double exchange_seconds = 0;        // an exchange, in addition to its messages
  double message_seconds = 0;         // a message, in addition to its bytes

  /// Returns the FLOP/s of a product. Between the sizes of the table it interpolates linearly in
  /// the logarithm of the size; outside it takes the nearest row.
  double product_rate(int64_t smallest_dimension, bool symmetric, DType dtype) const;
  /// Returns the bytes per second of a pass, interpolated in the same way.
  double pass_rate(PassKind kind, double footprint) const;
  /// Whether the ranks of a node share its cores, and exchanges inside it are copies on them.
  bool shares_cores() const { return !gpu && exchange_processors > 0; }
  /// Threads that compute for a rank.
  double threads() const;

  /// Returns a hash of the name and of all numbers, without `title` and the sources.
  uint64_t hash() const;

  /// The same host with `ranks` ranks in a node. Their rates follow their numbers of threads, and
  /// their memory is a part of the host's. Has no effect on a GPU.
  /// @param threads  of a rank; 0: its part of the cores, at least one.
  MachineProfile with_ranks(int ranks, int threads) const;
};

/// Reads a profile.
/// @param what  names the text in errors.
/// Errors: INVALID_ARGUMENT, naming the field, for a missing or unknown field, a field without a
/// source, and a number out of range; CORRUPT for invalid JSON.
MachineProfile parse_profile(std::string_view text, const std::string& what);

}  // namespace muonrt
