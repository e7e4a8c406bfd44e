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

// PTX in a form that can be run: names are places in a table of values, labels are positions.

namespace emulator::ptx {

struct Instruction;
struct Thread;
using Run = void (*)(Thread&, const Instruction&);

/// Where the value of an operand is kept, and what is added to it (of an address).
struct Argument {
  int slot = 0;
  int64_t offset = 0;
};

struct Function;

struct Instruction {
  Run run = nullptr;
  const Argument* at = nullptr;  // in the text's order
  int count = 0;                 // of them
  int guard = -1;                // slot of the predicate, or none
  bool unless = false;
  size_t target = 0;                 // of a branch
  const Function* callee = nullptr;  // of a call
};

/// Slots that every function has, before its registers and numbers.
enum Special {
  kNowhere,     // what is written there is lost
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
  bool kernel = false;  // else one that kernels call
  unsigned most_threads = 0;
  size_t parameter_bytes = 0, local_bytes = 0;
  size_t static_bytes = 0;  // of shared memory; what the launch asks for begins there
  std::vector<StackRange> parameters, results;  // of a function that is called: one after the other
  std::vector<uint64_t> values;                 // of all slots, before the first instruction
  std::vector<Instruction> code;
  std::vector<std::string> sources;  // of the instructions
  std::vector<std::unique_ptr<std::vector<Argument>>> arguments;
};

/// A thread at work. Numbers of up to 32 bits lie in the lower half of a slot, signed ones
/// extended.
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
  /// An operand in brackets.
  uint64_t address(const Argument& a) const {
    return slots[a.slot] + static_cast<uint64_t>(a.offset);
  }
};

/// Instructions by the words of their opcodes.
using Table = std::unordered_map<std::string, Run>;
void add_arithmetic(Table& table);
void add_memory(Table& table);
/// Those that threads carry out together, and those of other engines.
void add_together(Table& table);
void add_warp(Table& table);

/// Makes functions of a module's text. Throws std::runtime_error that quotes what is not known.
std::vector<std::unique_ptr<Function>> translate(const ModuleText& module);

/// Runs a function from its first instruction; `locals` holds local_bytes, `slots` all values.
void run(const Function& function, unsigned char* parameters, unsigned char* locals,
         uint64_t* slots);

}  // namespace emulator::ptx
