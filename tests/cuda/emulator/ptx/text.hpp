#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// PTX as nvcc writes it, split into statements. Source: PTX ISA 9.0, chapters 4 and 5.

namespace emulator::ptx {

/// A variable, for example `.shared .align 8 .b8 name[4096]`.
struct Variable {
  std::string space, type, name;  // for example "shared" and "b8"
  size_t alignment = 1, bytes = 0;
};

struct Operand {
  std::string text;
  bool address = false;  // whether the operand is in brackets
};

struct Statement {
  enum class Kind { kInstruction, kLabel, kRegisters, kVariable, kOpen, kClose };
  Kind kind = Kind::kInstruction;
  std::string guard;  // the predicate of the instruction, or empty
  bool unless = false;
  std::string name;               // opcode, label, or prefix of the registers
  std::vector<Operand> operands;  // in order; elements of vectors and lists are separate
  std::string type;               // type of the registers
  int count = 0;  // registers %r0 to %r<count - 1>; if 0, one register with this exact name
  Variable variable;
  std::string source;  // the original text
};

/// A kernel, or a function that kernels call.
struct FunctionText {
  bool kernel = false;
  std::string name;
  std::vector<Variable> results, parameters;
  unsigned most_threads = 0;  // maximum number of threads of a block; 0 if not specified
  std::vector<Statement> body;
};

struct ModuleText {
  std::vector<Variable> variables;  // variables outside functions
  std::vector<FunctionText> functions;
};

/// Splits the text of a module into statements. Throws a std::runtime_error that quotes unsupported
/// text.
ModuleText read_module(std::string_view text);

}  // namespace emulator::ptx
