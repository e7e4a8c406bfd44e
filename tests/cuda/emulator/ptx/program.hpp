#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "ptx/text.hpp"

// PTX in an executable form. Slots in a table of values replace names, and positions replace
// labels.

namespace emulator::ptx {

struct Instruction;
struct Thread;
using Run = void (*)(Thread&, const Instruction&);

/// An operand: the slot of its value and, for an address, also the offset that is added to the
/// value.
struct Argument {
  int slot = 0;
  int64_t offset = 0;
};

struct Function;

struct Instruction {
  Run run = nullptr;
  const Argument* at = nullptr;  // in the order of the text
  int count = 0;                 // number of operands
  int guard = -1;                // slot of the predicate, or -1
  bool unless = false;
  size_t target = 0;                 // position that a branch jumps to
  const Function* callee = nullptr;  // function that a call runs
};

/// Slots that every function has. They precede the slots of the function's registers and constants.
enum Special {
  kNowhere,     // values that are discarded
  kParameters,  // address of the arguments
  kLocal,       // address of the thread's local memory
  kTidX,
  kTidY,
  kTidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kClusterRank,
  kGlobalTimer,
  kSpecials
};

struct StackRange {
  size_t offset = 0, bytes = 0;
};

struct Function {
  std::string name;
  bool kernel = false;  // false for a function that kernels call
  unsigned most_threads = 0;
  size_t parameter_bytes = 0, local_bytes = 0;
  // Size of the static shared memory; the dynamic part follows it.
  size_t static_bytes = 0;
  std::vector<StackRange> parameters, results;  // of a called function, one after another
  std::vector<uint64_t> values;                 // initial values of all slots
  std::vector<Instruction> code;
  std::vector<std::string> sources;  // texts of the instructions
  std::vector<std::unique_ptr<std::vector<Argument>>> arguments;
};

/// A running thread. Values of up to 32 bits are in the lower half of a slot. Signed values are
/// sign-extended.
struct Thread {
  uint64_t* slots = nullptr;
  const Function* function = nullptr;
  size_t next = 0;
  bool ended = false;

  template <class T>
  T get(const Argument& a) const {
    const uint64_t word = slots[a.slot];
    if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<float>(static_cast<uint32_t>(word));
    } else if constexpr (std::is_same_v<T, double>) {
      return std::bit_cast<double>(word);
    } else if constexpr (std::is_same_v<T, bool>) {
      return word != 0;
    } else {
      return static_cast<T>(word);
    }
  }
  template <class T>
  void set(const Argument& a, T value) {
    if constexpr (std::is_same_v<T, float>) {
      slots[a.slot] = std::bit_cast<uint32_t>(value);
    } else if constexpr (std::is_same_v<T, double>) {
      slots[a.slot] = std::bit_cast<uint64_t>(value);
    } else if constexpr (std::is_signed_v<T>) {
      slots[a.slot] = static_cast<uint64_t>(static_cast<int64_t>(value));
    } else {
      slots[a.slot] = static_cast<uint64_t>(value);
    }
  }
  /// Returns the address of an operand in brackets.
  uint64_t address(const Argument& a) const {
    return slots[a.slot] + static_cast<uint64_t>(a.offset);
  }
};

/// Instructions, indexed by the parts of their opcodes.
using Table = std::unordered_map<std::string, Run>;
void add_arithmetic(Table& table);
void add_memory(Table& table);
/// Adds the instructions that threads execute together, and the instructions of copy engines and
/// tensor cores.
void add_together(Table& table);
/// Adds the instructions that the lanes of a warp execute together.
void add_warp(Table& table);

/// Translates the text of a module to functions. Throws a std::runtime_error that quotes
/// unsupported text.
std::vector<std::unique_ptr<Function>> translate(const ModuleText& module);

/// Runs a function from its first instruction. `locals` points to local_bytes bytes, and `slots`
/// contains all values.
void run(const Function& function, unsigned char* parameters, unsigned char* locals,
         uint64_t* slots);

}  // namespace emulator::ptx
