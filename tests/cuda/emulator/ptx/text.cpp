#include "ptx/text.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>
#include <utility>

namespace emulator::ptx {

namespace {

[[noreturn]] void refuse(std::string_view what, std::string_view text) {
  throw std::runtime_error("PTX: " + std::string(what) + ": " + std::string(text));
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kBlank) - first + 1));
}

/// Splits the text at spaces and at the characters in `separators`, and returns the words.
std::vector<std::string> words(std::string_view text, std::string_view separators) {
  std::vector<std::string> found;
  std::string word;
  for (const char c : std::string(text) + ' ') {
    const bool ends = std::isspace(static_cast<unsigned char>(c)) != 0 ||
                      separators.find(c) != std::string_view::npos;
    if (!ends) {
      word += c;
    } else if (!word.empty()) {
      found.push_back(std::move(word));
      word.clear();
    }
  }
  return found;
}

size_t bytes_of(const std::string& type, std::string_view where) {
  static const std::map<std::string, size_t> known = {
      {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2}, {"u16", 2}, {"s16", 2}, {"b32", 4},
      {"u32", 4}, {"s32", 4}, {"f32", 4}, {"b64", 8}, {"u64", 8}, {"s64", 8}, {"f64", 8}};
  const auto found = known.find(type);
  if (found == known.end()) refuse("a type of unknown size", where);
  return found->second;
}

/// Parses a declaration of a variable. Returns false for other statements.
bool read_variable(std::string_view text, Variable& v) {
  static const std::vector<std::string> spaces = {"param", "shared", "local", "global", "const"};
  v = {};
  size_t element = 0, count = 1;
  const std::vector<std::string> parts = words(text, "");
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    if (part == ".extern" || part == ".visible" || part == ".weak") continue;
    if (part == ".align") {
      v.alignment = std::stoul(parts.at(++i));
    } else if (part[0] == '.') {
      const std::string word = part.substr(1);
      bool space = false;
      for (const std::string& s : spaces) space |= s == word;
      if (space) {
        v.space = word;
      } else if (v.space.empty()) {
        return false;
      } else {
        v.type = word;
        element = bytes_of(word, text);
      }
    } else {
      if (v.space.empty() || element == 0) return false;
      const size_t bracket = part.find('[');
      v.name = part.substr(0, bracket);
      if (bracket != std::string::npos) {
        const std::string size = part.substr(bracket + 1, part.find(']') - bracket - 1);
        count = size.empty() ? 0 : std::stoul(size);
      }
      if (i + 1 != parts.size()) refuse("an unsupported declaration of a variable", text);
    }
  }
  if (v.name.empty()) return false;
  v.alignment = std::max(v.alignment, element);
  v.bytes = element * count;
  return true;
}

std::vector<Variable> read_parameters(std::string_view list) {
  std::vector<Variable> found;
  for (const std::string& one : [&] {
         std::vector<std::string> cut(1);
         for (const char c : list) {
           if (c == ',') {
             cut.emplace_back();
           } else {
             cut.back() += c;
           }
         }
         return cut;
       }()) {
    if (trimmed(one).empty()) continue;
    Variable v;
    if (!read_variable(one, v)) refuse("an unsupported parameter", one);
    found.push_back(v);
  }
  return found;
}

/// Returns the text in the first parentheses at or after `from`, and moves `from` to their end.
std::string_view in_parentheses(std::string_view text, size_t& from) {
  const size_t open = text.find('(', from), close = text.find(')', from);
  if (open == std::string_view::npos || close == std::string_view::npos)
    refuse("a function without parameters", text);
  from = close + 1;
  return text.substr(open + 1, close - open - 1);
}

FunctionText read_head(std::string_view text) {
  FunctionText f;
  f.kernel = text.find(".entry") != std::string_view::npos;
  size_t at = f.kernel ? text.find(".entry") + 6 : text.find(".func") + 5;
  if (!f.kernel && trimmed(text.substr(at))[0] == '(')
    f.results = read_parameters(in_parentheses(text, at));
  f.name = trimmed(text.substr(at, text.find('(', at) - at));
  f.parameters = read_parameters(in_parentheses(text, at));
  const std::vector<std::string> limits = words(text.substr(at), ",");
  for (size_t i = 0; i < limits.size(); ++i) {
    if (limits[i] == ".maxntid") {
      f.most_threads = 1;
      for (size_t k = i + 1; k < limits.size() && limits[k][0] != '.'; ++k)
        f.most_threads *= static_cast<unsigned>(std::stoul(limits[k]));
    }
  }
  return f;
}

std::vector<Operand> read_operands(std::string_view text) {
  std::vector<Operand> found;
  std::string word;
  bool address = false;
  for (const char c : std::string(text) + ' ') {
    const bool ends = std::isspace(static_cast<unsigned char>(c)) != 0 ||
                      std::string_view(",{}()|[]").find(c) != std::string_view::npos;
    if (!ends) {
      word += c;
      continue;
    }
    if (!word.empty()) {
      found.push_back({std::move(word), std::exchange(address, false)});
      word.clear();
    }
    if (c == '[') address = true;
  }
  return found;
}

Statement read_statement(const std::string& text) {
  Statement s;
  s.source = text;
  if (read_variable(text, s.variable)) {
    s.kind = Statement::Kind::kVariable;
    return s;
  }
  if (text.rfind(".reg", 0) == 0) {
    const std::vector<std::string> parts = words(text, "<>");
    if (parts.size() < 3) refuse("an unsupported declaration of registers", text);
    s.kind = Statement::Kind::kRegisters;
    s.type = parts[1].substr(1);
    s.name = parts[2];
    s.count = parts.size() > 3 ? std::stoi(parts[3]) : 0;
    return s;
  }
  size_t at = 0;
  if (text[0] == '@') {
    s.unless = text[1] == '!';
    const size_t first = s.unless ? 2 : 1, end = text.find_first_of(" \t\n", first);
    s.guard = text.substr(first, end - first);
    at = text.find_first_not_of(" \t\n", end);
  }
  const size_t end = std::min(text.find_first_of(" \t\n", at), text.size());
  s.name = text.substr(at, end - at);
  s.operands = read_operands(std::string_view(text).substr(end));
  return s;
}

std::string without_comments(std::string_view text) {
  std::string kept;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 2) == "//") i = std::min(text.find('\n', i), text.size() - 1);
    kept += text[i];
  }
  return kept;
}

/// Returns whether the directive occupies a whole line and has no semicolon.
bool is_line_directive(const std::string& word) {
  return word == ".version" || word == ".target" || word == ".address_size";
}

/// Reads the words of a module, statement by statement.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(without_comments(text)) {}

  ModuleText read() {
    for (; at_ < text_.size(); ++at_) take(text_[at_]);
    if (function_ || !trimmed(word_).empty()) refuse("the text ends inside", word_);
    return std::move(module_);
  }

 private:
  void take(char c) {
    const std::string begun = trimmed(word_);
    if (c == '\n' && !function_ && is_line_directive(begun.substr(0, begun.find(' ')))) {
      word_.clear();
    } else if (c == ';' && depth_in_word_ == 0) {
      end_statement(begun);
      word_.clear();
    } else if (c == '{' && (begun.empty() || begins_function(begun))) {
      open(begun);
      word_.clear();
    } else if (c == '}' && begun.empty()) {
      close();
    } else if (c == ':' && function_ && is_label(begun)) {
      Statement s;
      s.kind = Statement::Kind::kLabel;
      s.name = begun;
      function_->body.push_back(s);
      word_.clear();
    } else {
      depth_in_word_ += (c == '{') - (c == '}');
      word_ += c;
    }
  }

  bool begins_function(const std::string& begun) const {
    return !function_ &&
           (begun.find(".entry") != std::string::npos || begun.find(".func") != std::string::npos);
  }

  /// Returns whether a single colon follows the name.
  bool is_label(const std::string& begun) const {
    if (begun.empty() || (at_ + 1 < text_.size() && text_[at_ + 1] == ':')) return false;
    for (const char c : begun)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '$') return false;
    return true;
  }

  void open(const std::string& begun) {
    if (!function_) {
      module_.functions.push_back(read_head(begun));
      function_ = &module_.functions.back();
      return;
    }
    ++scopes_;
    Statement s;
    s.kind = Statement::Kind::kOpen;
    function_->body.push_back(s);
  }

  void close() {
    if (!function_) refuse("an unmatched brace", text_.substr(at_, 80));
    if (scopes_ == 0) {
      function_ = nullptr;
      return;
    }
    --scopes_;
    Statement s;
    s.kind = Statement::Kind::kClose;
    function_->body.push_back(s);
  }

  void end_statement(const std::string& text) {
    if (text.empty() || text.rfind(".pragma", 0) == 0) return;
    if (function_) {
      function_->body.push_back(read_statement(text));
      return;
    }
    Variable v;
    if (read_variable(text, v)) {
      module_.variables.push_back(v);
      // A function that is only declared here is defined below.
    } else if (text.find(".func") == std::string::npos) {
      refuse("a statement outside functions", text);
    }
  }

  std::string text_, word_;
  size_t at_ = 0;
  int depth_in_word_ = 0, scopes_ = 0;
  ModuleText module_;
  FunctionText* function_ = nullptr;
};

}  // namespace

ModuleText read_module(std::string_view text) { return Reader(text).read(); }

}  // namespace emulator::ptx
