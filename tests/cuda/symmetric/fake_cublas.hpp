#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// cuBLASLt over the emulated GPU, a shared library with its name: column-major products of f32,
/// f16 and bf16, sums in f32 over sixteen terms at a time. A search finds up to three algorithms,
/// the later ones faster. What its manual leaves to the
/// caller (sizes, alignment, overlap, which GPU is current, where scratch lies) is checked, and
/// told with the error.
#pragma GCC visibility push(default)
namespace fake_cublas {

/// What products are refused from now on; nothing by default.
struct Refusals {
  bool shapes = false;      // no algorithm for any shape
  bool candidates = false;  // shapes are known, but no algorithm fits
  bool batches = false;     // algorithms have no launches of many matrices
  int64_t most = 1 << 30;   // matrices that an algorithm takes in a launch
  bool launches = false;    // every product ends with an error
  bool alone = false;       // the first algorithm found for a batch takes no single matrix
};
void refuse(const Refusals& refusals);

struct Launch {
  int64_t m, n, k, count;  // column-major
  bool transposed;         // the first operand
  int candidate;           // place of its algorithm among those that were found
};
/// Since the last call.
std::vector<Launch> launches();
/// Searches for an algorithm so far.
int64_t searches();
/// What they were for, since the last call.
struct Asked {
  int64_t m, n, k, count, stride;  // column-major; of the result
  uint32_t reductions;             // ways to add up what is cut in depth
};
std::vector<Asked> asked();
/// Handles made so far.
int64_t handles();
/// Other objects that were made and not given back.
int64_t alive();

}  // namespace fake_cublas
#pragma GCC visibility pop
