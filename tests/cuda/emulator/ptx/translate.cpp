#include <cstring>
#include <map>

#include "ptx/program.hpp"

namespace emulator::ptx {

namespace {

constexpr uint64_t kNeverWritten = 0x7ff7ffff7fffffffull;  // NaN in every type

[[noreturn]] void refuse(const std::string& what, const std::string& text) {
  throw std::runtime_error("PTX: " + what + ": " + text);
}

const Table& table() {
  static const Table* const all = [] {
    auto* t = new Table();
    add_arithmetic(*t);
    add_memory(*t);
    add_together(*t);
    add_warp(*t);
    return t;
  }();
  return *all;
}

size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/// The meaning of a name: a slot, and an offset that is added to the slot's value.
using Names = std::unordered_map<std::string, Argument>;

void branch(Thread& t, const Instruction& i) { t.next = i.target; }
void leave(Thread& t, const Instruction&) { t.ended = true; }

/// Stores an address that is a constant, or that has a constant offset from a special slot.
void take_address(Thread& t, const Instruction& i) { t.set<uint64_t>(i.at[0], t.address(i.at[1])); }

class Translator {
 public:
  Translator(const ModuleText& module, const std::map<std::string, const Function*>& callees)
      : module_(module), callees_(callees) {}

  std::unique_ptr<Function> translate(const FunctionText& text) {
    f_ = std::make_unique<Function>();
    f_->name = text.name;
    f_->kernel = text.kernel;
    f_->most_threads = text.most_threads;
    f_->values.assign(kSpecials, 0);
    scopes_.assign(1, specials());
    lay_out(text);
    find_labels(text);
    for (const Statement& s : text.body) take(s);
    add("ret", {}).run = leave;  // the function also ends at its closing brace
    return std::move(f_);
  }

 private:
  static Names specials() {
    Names names;
    const char* const known[] = {
        "_",         "",          "",          "%tid.x",           "%tid.y",      "%tid.z",
        "%ctaid.x",  "%ctaid.y",  "%ctaid.z",  "%ntid.x",          "%ntid.y",     "%ntid.z",
        "%nctaid.x", "%nctaid.y", "%nctaid.z", "%cluster_ctarank", "%globaltimer"};
    static_assert(std::size(known) == kSpecials);
    for (int i = 0; i < kSpecials; ++i)
      if (*known[i]) names[known[i]] = {i, 0};
    return names;
  }

  /// Assigns addresses to parameters and shared memory. Static variables come first, and the
  /// dynamic part follows.
  void lay_out(const FunctionText& text) {
    size_t at = 0;
    const auto place = [&](const std::vector<Variable>& all, std::vector<StackRange>& places) {
      for (const Variable& v : all) {
        at = up(at, v.alignment);
        scopes_[0][v.name] = {kParameters, static_cast<int64_t>(at)};
        places.push_back({at, v.bytes});
        at += v.bytes;
      }
    };
    place(text.parameters, f_->parameters);
    f_->parameter_bytes = at;
    place(text.results, f_->results);
    for (const Statement& s : text.body)
      if (s.kind == Statement::Kind::kVariable && s.variable.space == "shared")
        place_shared(s.variable);
    for (const Variable& v : module_.variables)
      if (v.space == "shared" && v.bytes > 0) place_shared(v);
    constexpr size_t kDynamicAlignment = 1024;
    f_->static_bytes = up(f_->static_bytes, kDynamicAlignment);
    for (const Variable& v : module_.variables) {
      if (v.space != "shared") refuse("a variable outside functions", v.name);
      if (v.bytes == 0) scopes_[0][v.name] = constant(f_->static_bytes);
    }
  }
  void place_shared(const Variable& v) {
    f_->static_bytes = up(f_->static_bytes, v.alignment);
    scopes_[0][v.name] = constant(f_->static_bytes);
    f_->static_bytes += v.bytes;
  }

  void find_labels(const FunctionText& text) {
    labels_.clear();
    size_t at = 0;
    for (const Statement& s : text.body) {
      at += s.kind == Statement::Kind::kInstruction;
      if (s.kind == Statement::Kind::kLabel && !labels_.emplace(s.name, at).second)
        refuse("a label occurs twice", s.name);
    }
  }

  Argument new_slot(uint64_t value) {
    f_->values.push_back(value);
    return {static_cast<int>(f_->values.size()) - 1, 0};
  }
  Argument constant(uint64_t value) {
    const auto [found, fresh] = constants_.try_emplace(value);
    if (fresh) found->second = new_slot(value);
    return found->second;
  }

  void take(const Statement& s) {
    switch (s.kind) {
      case Statement::Kind::kOpen:
        scopes_.emplace_back();
        break;
      case Statement::Kind::kClose:
        scopes_.pop_back();
        break;
      case Statement::Kind::kLabel:
        break;
      case Statement::Kind::kRegisters:
        if (s.count == 0) scopes_.back()[s.name] = new_slot(kNeverWritten);
        for (int i = 0; i < s.count; ++i)
          scopes_.back()[s.name + std::to_string(i)] = new_slot(kNeverWritten);
        break;
      case Statement::Kind::kVariable:
        if (s.variable.space == "shared") break;  // it already has an address
        if (s.variable.space != "local" && s.variable.space != "param")
          refuse("an unsupported variable", s.source);
        f_->local_bytes = up(f_->local_bytes, s.variable.alignment);
        scopes_.back()[s.variable.name] = {kLocal, static_cast<int64_t>(f_->local_bytes)};
        f_->local_bytes += s.variable.bytes;
        break;
      case Statement::Kind::kInstruction:
        take_instruction(s);
        break;
    }
  }

  const Argument* find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    return nullptr;
  }

  /// Parses a number in PTX.
  Argument number(const std::string& text, const std::string& where) {
    if (text.rfind("0f", 0) == 0) return constant(std::stoul(text.substr(2), nullptr, 16));
    if (text.rfind("0d", 0) == 0) return constant(std::stoull(text.substr(2), nullptr, 16));
    size_t read = 0;
    uint64_t value = 0;
    try {
      value = text[0] == '-' ? static_cast<uint64_t>(std::stoll(text, &read, 0))
                             : std::stoull(text, &read, 0);
    } catch (const std::logic_error&) {
      read = 0;
    }
    if (read != text.size()) refuse("'" + text + "' is not known", where);
    return constant(value);
  }

  Argument argument(const Operand& operand, const std::string& where) {
    if (const Argument* known = find(operand.text)) return *known;
    const size_t plus = operand.text.find('+');
    if (!operand.address || plus == std::string::npos) return number(operand.text, where);
    const Argument* base = find(operand.text.substr(0, plus));
    if (!base) refuse("an unknown address", where);
    return {base->slot, base->offset + std::stoll(operand.text.substr(plus + 1))};
  }

  Instruction& add(const std::string& source, std::vector<Argument> arguments) {
    f_->arguments.push_back(std::make_unique<std::vector<Argument>>(std::move(arguments)));
    f_->sources.push_back(source);
    Instruction& i = f_->code.emplace_back();
    i.at = f_->arguments.back()->data();
    i.count = static_cast<int>(f_->arguments.back()->size());
    return i;
  }

  void take_instruction(const Statement& s) {
    if (s.name == "bra" || s.name == "bra.uni") {
      const auto label = labels_.find(s.operands.at(0).text);
      if (label == labels_.end()) refuse("a branch to nowhere", s.source);
      Instruction& i = add(s.source, {});
      i.run = branch;
      i.target = label->second;
    } else if (s.name == "call.uni") {
      take_call(s);
    } else {
      std::vector<Argument> arguments;
      for (const Operand& operand : s.operands) arguments.push_back(argument(operand, s.source));
      const bool moves_address = s.name.rfind("mov.", 0) == 0 && arguments.size() == 2 &&
                                 (arguments[1].slot == kParameters || arguments[1].slot == kLocal);
      Instruction& i = add(s.source, std::move(arguments));
      if (s.name == "ret" || s.name == "exit") {
        i.run = leave;
      } else if (moves_address) {
        i.run = take_address;
      } else {
        const auto found = table().find(shape_of(s));
        if (found == table().end()) refuse("an unknown instruction", s.source);
        i.run = found->second;
      }
    }
    if (s.guard.empty()) return;
    const Argument* const guard = find(s.guard);
    if (!guard) refuse("an unknown predicate", s.source);
    f_->code.back().guard = guard->slot;
    f_->code.back().unless = s.unless;
  }

  /// Returns the opcode. For a move between a value and its parts, the result also contains the
  /// number of operands.
  static std::string shape_of(const Statement& s) {
    if (s.name.rfind("mov.", 0) != 0 || s.operands.size() == 2) return s.name;
    const bool whole_first = s.source.find('{') > s.source.find(',');
    return s.name + (whole_first ? ".pack" : ".unpack");
  }

  /// Reads a call of the form: call.uni (result), function, (arguments). All these names denote
  /// memory.
  void take_call(const Statement& s) {
    const Function* callee = nullptr;
    std::vector<Argument> arguments;
    for (const Operand& operand : s.operands) {
      const auto found = callees_.find(operand.text);
      if (found != callees_.end()) {
        callee = found->second;
      } else {
        arguments.push_back(argument(operand, s.source));
      }
    }
    if (!callee || arguments.size() != callee->results.size() + callee->parameters.size())
      refuse("an unsupported call", s.source);
    Instruction& i = add(s.source, std::move(arguments));
    i.run = call;
    i.callee = callee;
  }

  static void call(Thread& t, const Instruction& i);

  const ModuleText& module_;
  const std::map<std::string, const Function*>& callees_;
  std::unique_ptr<Function> f_;
  std::vector<Names> scopes_;
  std::unordered_map<std::string, size_t> labels_;
  std::unordered_map<uint64_t, Argument> constants_;
};

void Translator::call(Thread& t, const Instruction& i) {
  const Function& f = *i.callee;
  const auto memory_of = [&](size_t k) { return reinterpret_cast<void*>(t.address(i.at[k])); };
  const size_t results = f.results.size();
  size_t bytes = f.parameter_bytes;
  for (const StackRange& p : f.results) bytes = std::max(bytes, p.offset + p.bytes);
  std::vector<unsigned char> passed(bytes), locals(f.local_bytes + 1);
  std::vector<uint64_t> slots(f.values.size());
  for (size_t k = 0; k < f.parameters.size(); ++k)
    std::memcpy(passed.data() + f.parameters[k].offset, memory_of(results + k),
                f.parameters[k].bytes);
  run(f, passed.data(), locals.data(), slots.data());
  for (size_t k = 0; k < results; ++k)
    std::memcpy(memory_of(k), passed.data() + f.results[k].offset, f.results[k].bytes);
}

}  // namespace

std::vector<std::unique_ptr<Function>> translate(const ModuleText& module) {
  std::vector<std::unique_ptr<Function>> functions;
  std::map<std::string, const Function*> callees;
  for (const bool kernels : {false, true}) {  // callees come before kernels
    for (const FunctionText& text : module.functions) {
      if (text.kernel != kernels) continue;
      functions.push_back(Translator(module, callees).translate(text));
      if (!kernels) callees[text.name] = functions.back().get();
    }
  }
  return functions;
}

}  // namespace emulator::ptx
