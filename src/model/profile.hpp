#pragma once

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

/// A machine as the model sees it. All ranks have the same one, and one device each. Every number
/// of the file has a source (src/model/README.md).
struct MachineProfile {
  std::string name, title;
  bool gpu = true;
  double memory_bytes = 0;            // of a device
  std::vector<ProductRate> products;  // ascending sizes; 16-bit operands
  double f32_ratio = 1;               // rate of products of f32 relative to those of 16 bits
  double product_seconds = 0;         // a call of products, in addition to their FLOPs
  double pass_bytes = 0;              // bytes per second of a pass over memory
  double normalize_ratio = 1;         // rate of the normalization relative to other passes
  double pass_seconds = 0;            // a pass, in addition to its bytes
  double launch_seconds = 0;          // the host enqueues one operation
  double processors = 1;              // SMs, compute units or cores of a device
  double exchange_processors = 0;     // those that products leave to exchanges
  double node_ranks = 1;              // consecutive ranks with the fast links of a node
  double node_bytes = 0;              // bytes per second and direction of a rank inside a node
  double network_bytes = 0;           // the same between nodes
  double exchange_seconds = 0;        // an exchange, in addition to its messages
  double message_seconds = 0;         // a message, in addition to its bytes

  /// Returns the FLOP/s of a product. Between the sizes of the table it interpolates linearly in
  /// the logarithm of the size; outside it takes the nearest row.
  double product_rate(int64_t smallest_dimension, bool symmetric, DType dtype) const;
};

/// Reads a profile.
/// @param what  names the text in errors.
/// Errors: INVALID_ARGUMENT, naming the field, for a missing or unknown field, a field without a
/// source, and a number out of range; CORRUPT for invalid JSON.
MachineProfile parse_profile(std::string_view text, const std::string& what);

}  // namespace muonrt
