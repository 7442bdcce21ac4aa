// The pages of docs/ as a site. scripts/site.sh copies them beside this file, and builds it.
import path from "node:path";

const repository = "https://github.com/lockregistry/lockregistry";

// slugify makes an anchor of a heading as GitHub does: the pages are read there, too.
const slugify = (heading) =>
  heading
    .trim()
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\p{M}\s_-]/gu, "")
    .replace(/\s/g, "-");

// links leads what is not a page of the site to the repository, and makes a cell of an empty heading.
function links(md) {
  md.core.ruler.push("repository", (state) => {
    const visit = (tokens) => {
      tokens.forEach((token, i) => {
        if (token.children) visit(token.children);
        if (token.type === "th_open" && tokens[i + 1].content === "") token.tag = tokens[i + 2].tag = "td"; // it heads nothing
        for (const name of ["href", "src"]) {
          const target = token.attrGet(name);
          if (target === null || /^[a-z]+:|^#|^\//.test(target)) continue;
          const [file, anchor] = target.split("#");
          const full = path.posix.join("docs", path.posix.dirname(state.env.relativePath ?? ""), decodeURI(file));
          const page = full.startsWith("docs/") && /\.(md|svg|png)$/.test(full);
          if (!page) token.attrSet(name, `${repository}/${name === "src" ? "raw" : "blob"}/main/${full}${anchor ? `#${anchor}` : ""}`);
        }
      });
    };
    visit(state.tokens);
  });
}

const entry = (text, link) => ({ text, link });

export default {
  title: "lockregistry",
  description: "Locks in Redis for Go, shared with Spring Integration and Redisson",
  lang: "en",
  srcDir: "pages",
  outDir: "dist",
  rewrites: { "README.md": "index.md" },
  cleanUrls: true,
  lastUpdated: false,
  metaChunk: true,
  markdown: {
    anchor: { slugify },
    config: links,
    theme: { light: "github-light-high-contrast", dark: "github-dark-high-contrast" },
  },
  themeConfig: {
    search: { provider: "local" },
    outline: [2, 3],
    socialLinks: [{ icon: "github", link: repository }],
    editLink: { pattern: `${repository}/edit/main/docs/:path`, text: "Edit this page" },
    sidebar: [
      { text: "Begin", items: [entry("All pages", "/"), entry("Recipes", "/recipes"), entry("Testing", "/testing"), entry("Comparison", "/comparison")] },
      {
        text: "From Java",
        items: [entry("Spring", "/migration/spring"), entry("Redisson", "/migration/redisson"), entry("Both at once", "/migration/mixed-fleet")],
      },
      { text: "What is promised", items: [entry("Semantics", "/semantics"), entry("Fencing tokens", "/fencing"), entry("Performance", "/performance")] },
      {
        text: "Run it",
        items: [
          entry("On call", "/oncall"),
          entry("Operations", "/operations"),
          entry("Permissions", "/permissions"),
          entry("Clusters and Sentinel", "/clusters"),
          entry("Managed services", "/managed-services"),
        ],
      },
      { text: "Inside", items: [entry("Architecture", "/architecture"), entry("Wire format", "/wire-format")] },
    ],
  },
};
