#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// The rate of matrix products whose smallest dimension is `size`, in FLOP/s. A product of m x k by
/// k x n counts as 2 m n k FLOPs, even if it is symmetric and only half of it is computed.
struct ProductRate {
  double size = 0, symmetric = 0, general = 0;
};

/// The kinds of passes over memory, which have different rates: copies of messages and buffers,
/// packing of gradients into messages, passes over matrices that are stored transposed, the
/// normalization, and updates of weights.
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
/// The names of the kinds in the JSON profiles, indexed by kind.
constexpr std::array<const char*, kPassKinds> kPassNames = {
    "copy", "pack", "transpose", "normalize", "commit", "stochastic", "adamw"};

/// The rates of passes in bytes per second, indexed by kind. `footprint` is the number of bytes
/// that are accessed between two uses of the same byte. If it is small, caches can keep the byte.
struct PassRate {
  double footprint = 0;
  std::array<double, kPassKinds> rates = {};
};

/// Describes a machine for the model (src/model) and for the cost model of the plan. All ranks run
/// on identical machines, and each rank has one device. The JSON file gives a source for every
/// number (tools/machines/README.md).
struct MachineProfile {
  std::string name, title;
  bool gpu = true;
  double memory_bytes = 0;            // memory of a device
  std::vector<ProductRate> products;  // ascending sizes; 16-bit operands
  double f32_ratio = 1;               // rate of f32 products relative to 16-bit products
  double product_seconds = 0;         // time of one product in addition to its FLOPs
  double pass_bytes = 0;              // rate of a pass over memory, in bytes per second
  std::vector<PassRate> passes;       // ascending footprints; if empty, `pass_bytes` applies
  double normalize_ratio = 1;         // rate of the normalization relative to other passes
  double pass_seconds = 0;            // time of one pass in addition to its bytes
  double launch_seconds = 0;          // host time to enqueue one operation
  double handover_seconds = 0;        // time until a stream continues after a wait for another one
  double busy_handover_seconds = 0;   // time until a stream continues if all cores are busy
  double processors = 1;              // SMs or compute units of a GPU; cores of a host's node
  double exchange_processors = 0;     // processors left free for exchanges; see shares_cores()
  double rank_threads = 0;            // threads of a host rank; if 0, its part of the node's cores
  double node_ranks = 1;              // number of consecutive ranks that are in the same node
  double node_bytes = 0;              // bytes per second of a rank in each direction, inside a node
  double network_bytes = 0;           // bytes per second of a rank in each direction, between nodes
  double exchange_seconds = 0;        // time of one exchange in addition to its messages
  double message_seconds = 0;         // time of one message in addition to its bytes

  /// Returns the rate of a product in FLOP/s. Between two sizes of the table, the rate is
  /// interpolated linearly in the logarithm of the size. Outside the table, it is the rate of the
  /// nearest row.
  double product_rate(int64_t smallest_dimension, bool symmetric, DType dtype) const;
  /// Returns the rate of a pass in bytes per second, interpolated in the same way.
  double pass_rate(PassKind kind, double footprint) const;
  /// Returns true if the ranks of a node share its cores, so that exchanges inside the node are
  /// copies on these cores.
  bool shares_cores() const { return !gpu && exchange_processors > 0; }
  /// Returns the number of threads that compute for a rank.
  double threads() const;

  /// Returns a hash of the name and of all numbers, but not of `title` and the sources.
  uint64_t hash() const;

  /// Returns a profile of the same host with `ranks` ranks in a node. The rates of a rank are
  /// proportional to its number of threads, and its memory is its part of the host's memory. The
  /// profile of a GPU is returned unchanged.
  /// @param threads  Number of threads of a rank; 0 means its part of the cores, but at least one.
  MachineProfile with_ranks(int ranks, int threads) const;
};

/// Parses a profile from JSON.
/// @param what  Names the text in errors.
/// Errors: INVALID_ARGUMENT, with the name of the field, if a field is missing, unknown, out of
/// range or without a source; CORRUPT for invalid JSON.
MachineProfile parse_profile(std::string_view text, const std::string& what);

}  // namespace muonrt
