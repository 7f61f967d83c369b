// Checks the page's JavaScript: modules that browsers load as they are, without a build step.
import js from "@eslint/js";
import globals from "globals";

const PAGE = "src/hookline/server/static/js";

export default [
  { ignores: ["**/vendor/", ".venv/", "build/"] },
  {
    files: [`${PAGE}/**/*.js`],
    ...js.configs.recommended,
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...js.configs.recommended.rules,
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "no-shadow": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-implicit-coercion": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      // Recorded texts must never be parsed as markup.
      "no-restricted-properties": ["error", ...["innerHTML", "outerHTML", "insertAdjacentHTML"].map((property) => ({ property }))],
    },
  },
  // Loaded before the modules, as a classic script.
  { files: [`${PAGE}/theme_first.js`], languageOptions: { sourceType: "script" } },
];
