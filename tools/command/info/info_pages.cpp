#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command/command.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

namespace {

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

/// Calls `work(app, name)` for the command and each subcommand, with a name such as "muonrt bench
/// step".
template <class Work>
void for_each_command(const CLI::App& app, const std::string& name, const Work& work) {
  work(app, name);
  for (const CLI::App* below : subcommands_of(app))
    for_each_command(*below, name + " " + below->get_name(), work);
}

/// Escapes a text for roff, which treats a line that begins with a dot or an apostrophe as a
/// request.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool begins = out.empty() || out.back() == '\n';
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return out;
}

void print_man_page(const CLI::App& top) {
  const std::string about = top.get_description();
  const size_t colon = about.find(": ");
  const std::string version = nlohmann::json::parse(build_info()).at("version");
  fmt::print(".TH MUONRT 1 \"\" \"muonrt {}\" \"User Commands\"\n.SH NAME\nmuonrt \\- {}\n",
             version, roff(about.substr(colon + 2, about.find('\n') - colon - 2)));
  fmt::print(".SH SYNOPSIS\n.B muonrt\n.I subcommand\n[\\fIoptions\\fR]\n.SH DESCRIPTION\n{}\n",
             roff(about));
  fmt::print(".SH COMMANDS\n");
  for_each_command(top, "muonrt", [](const CLI::App& app, const std::string& name) {
    fmt::print(".SS {}\n{}\n", roff(name), roff(app.get_description()));
    for (const CLI::Option* option : options_of(app)) {
      const std::string value = option->get_expected_max() > 0 ? option->get_type_name() : "";
      fmt::print(".TP\n.B {}\n{}{}{}\n", roff(option->get_name(option->get_positional(), true)),
                 value.empty() ? "" : "\\fI" + roff(value) + "\\fR. ",
                 roff(option->get_description()),
                 option->get_default_str().empty()
                     ? ""
                     : fmt::format(" (default: {})", roff(option->get_default_str())));
    }
    if (!app.get_footer().empty()) fmt::print(".PP\n{}\n", roff(app.get_footer()));
  });
}

/// Returns the words that the validator of an option accepts. The type name of the option lists
/// them, as in "TEXT:{a,b}".
std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  if (begin == std::string::npos) return {};
  std::string words = type.substr(begin + 1, type.find('}') - begin - 1);
  std::replace(words.begin(), words.end(), ',', ' ');
  return words;
}

void print_completion(const CLI::App& top) {
  std::string paths, words, values;
  // Bash offers files if there are no words.
  const auto no_words = [](const std::string& names) {
    return names.empty() ? "" : "    " + names + ") words= ;;\n";
  };
  for_each_command(top, "muonrt", [&](const CLI::App& app, const std::string& name) {
    if (&app != &top) paths += (paths.empty() ? "" : "|") + fmt::format("\"{}\"", name);
    std::string all, others;
    bool files = false;
    for (const CLI::App* below : subcommands_of(app)) all += below->get_name() + " ";
    for (const CLI::Option* option : options_of(app)) {
      files = files || (option->get_positional() && option->get_type_name().ends_with("FILE"));
      for (const std::string& option_name : option->get_lnames()) {
        all += "--" + option_name + " ";
        const std::string found = choices_of(*option);
        const std::string both = fmt::format("\"{} --{}\"", name, option_name);
        if (!found.empty()) {
          values += fmt::format("    {}) words=\"{}\" ;;\n", both, found);
        } else if (option->get_expected_max() > 0) {
          others += (others.empty() ? "" : "|") + both;
        }
      }
    }
    words += fmt::format("    \"{}\") words=\"{}\"{} ;;\n", name, all,
                         files ? "; [[ $current == -* ]] || words=" : "");
    values += no_words(others);
  });
  fmt::print(
      R"(# Completion of muonrt in bash; zsh: autoload -U bashcompinit && bashcompinit
_muonrt() {{
  local path=muonrt words= current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} word
  # Bash splits --option=value at the equals sign.
  [[ $before != = ]] || before=${{COMP_WORDS[COMP_CWORD-2]}}
  [[ $current != = ]] || current=
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $word" in {}) path="$path $word" ;; esac
  done
  case "$path" in
{}  esac
  case "$path $before" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _muonrt muonrt
)",
      paths, words, values);
}

}  // namespace

void add_info_pages(CLI::App& info, Work& work) {
  const auto add = [&](const char* name, const char* about, const char* example, auto print) {
    CLI::App* const command = info.add_subcommand(name, about);
    command->footer(example);
    command->callback([&info, &work, print] {
      work = [&info, print] {
        print(*info.get_parent());
        return 0;
      };
    });
  };
  add("man", "the manual page of all subcommands, from their help",
      "Example: muonrt info man | man -l -", print_man_page);
  add("completion", "completes subcommands, options and values in bash and zsh",
      "Example: source <(muonrt info completion)", print_completion);
}

}  // namespace muonrt::tool
